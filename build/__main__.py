"""`python -m build engines`: make the bundles of MODEL_ID for TARGET. `check`: only compare TARGET=trtllm's
steps with the image they run in.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from . import targets
from .bundle import Built, build
from .catalog import CatalogError, Model, known, load_catalog, select
from .download import FetchError
from .jobs import BuildError, Places, plan_job
from .toolchain import TemplateError, ToolchainError, Unfit


def table(rows: list[Built]) -> str:
    """What was built, one line each."""
    lines = [f"{'id':24} {'target':9} {'MB':>8} {'seconds':>8}  state"]
    lines += [
        f"{row.model_id:24} {row.target:9} {row.bytes / 1e6:8.1f} {row.seconds:8.1f}  "
        f"{'unchanged' if row.unchanged else 'built'}"
        for row in rows
    ]
    return "\n".join(lines)


def check_all(models: Sequence[Model], target: str, places: Places) -> str:
    """One line for each model whose steps fit.

    Raises:
        Unfit: one that does not.
    """
    found = known(target)
    jobs = [
        plan_job(model, target, places, os.environ, devices)
        for model, devices in zip(models, found.build_devices(models, os.environ), strict=True)
    ]
    for job in jobs:
        found.preflight(job.recipe, job.work, devices=job.devices)
    return "\n".join(
        f"{job.model.id}: its {len(job.work.all())} steps fit the toolchain {job.toolchain.toolchain}"
        for job in jobs
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status 0, or 1 with one sentence on standard error."""
    parser = argparse.ArgumentParser(prog="python -m build", description=__doc__)
    parser.add_argument("command", choices=["engines", "check"])
    parser.add_argument(
        "--model-id",
        default=os.environ.get("MODEL_ID", ""),
        help="ids of catalog.toml, comma-separated (default: the miniatures)",
    )
    parser.add_argument("--target", default=os.environ.get("TARGET") or targets.DEFAULT_IN_DOCKER)
    parser.add_argument("--weights", type=Path, default=Path(os.environ.get("WEIGHTS_DIR", "weights")))
    parser.add_argument("--engines", type=Path, default=Path(os.environ.get("ENGINES_DIR", "engines")))
    arguments = parser.parse_args(argv)
    places = Places(arguments.weights.resolve(), arguments.engines.resolve())
    try:
        models = select(load_catalog(), arguments.model_id, arguments.target)
        if arguments.command == "check":
            print(check_all(models, arguments.target, places))
        else:
            own = known(arguments.target).build_devices(models, os.environ)
            print(
                table(
                    [
                        build(m, arguments.target, places, environment=os.environ, devices=devices)
                        for m, devices in zip(models, own, strict=True)
                    ]
                )
            )
    except (BuildError, CatalogError, FetchError, ToolchainError, TemplateError, Unfit) as error:
        print(f"conch: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
