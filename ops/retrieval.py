"""`python -m ops.retrieval`: the commands of gateway.retrieval for a deployment in process mode."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from conch.deployment import Deployment
from gateway.retrieval.__main__ import main as command

from .local import LocalDeployment
from .supervision import environment


def main() -> int:
    """Run the command and return its exit status. PORT and CONCH_HOME select the deployment, as for make
    serve.
    """
    local = LocalDeployment.from_environment()
    plan = local.home / "deployment.json"
    if not plan.exists():
        print(f"retrieval: {plan} does not exist; start the stack once: make serve", file=sys.stderr)
        return 1
    os.environ.update(environment(local, Deployment.load(plan), Path(sys.executable)))
    return command()


if __name__ == "__main__":
    sys.exit(main())
