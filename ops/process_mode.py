"""Conch without Docker: `python -m ops.process_mode check | serve | restart | stop | needs-vectors`.

supervisor runs a guard for each tritonserver, the gateway and nginx. Everything listens on 127.0.0.1 and
writes below one folder.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from xmlrpc.client import Fault

import httpx

from build.catalog import ROOT, CatalogError
from conch import proxies
from conch.contract import Malformed
from conch.deployment import Deployment
from gateway.aliases import BadAlias, own_aliases

from .child import die_with_parent
from .guard.supervise.bundle import BundleRefused
from .local import (
    LocalDeployment,
    LocalError,
    access_policy,
    link_certificate,
    nginx_binary,
    nginx_values,
    url,
)
from .nginx import write_nginx
from .restart import NotBack, restart_all
from .starting import Starting
from .supervision import (
    NGINX,
    VECTORS_PYTHON,
    Supervised,
    check_settings,
    control,
    environment,
    supervisor_config,
    wants_embedded_vectors,
)


def check(local: LocalDeployment) -> int:
    """Check every setting before anything is built.

    Raises:
        LocalError, CatalogError: one that cannot be; the message names it.
    """
    plan = local.outline()
    check_settings(environment(local, plan, Path(sys.executable)))
    access_policy()
    nginx_values(local)
    local.check_ports(plan)
    return 0


def prepare(local: LocalDeployment, python: Path) -> Deployment:
    """Write everything a deployment needs below its home folder."""
    plan = local.plan()
    local.check_ports(plan)
    for folder in ("logs", "run", "nginx", "retrieval"):
        (local.home / folder).mkdir(parents=True, exist_ok=True)
    for failures in local.home.glob("failures-*.json"):  # of a start before this one
        failures.unlink(missing_ok=True)
    plan.save(local.home / "deployment.json")
    check_settings(told := environment(local, plan, python))
    own_aliases(told.get("CONCH_MODEL_ALIASES", ""), {pool.model_id: pool for pool in plan.pools})
    write_nginx(local.home / "nginx", nginx_values(local), access_policy(), plan)
    link_certificate(local)
    checked = subprocess.run(
        [nginx_binary(), "-t", "-q", *NGINX.split()],
        cwd=local.home / "nginx",
        capture_output=True,
        text=True,
        check=False,
    )
    if checked.returncode != 0:
        raise LocalError(f"nginx rejects its configuration: {checked.stderr.strip()}")
    with (local.home / "supervisord.conf").open("w", encoding="utf-8") as file:
        supervisor_config(local, plan).write(file)
    return plan


def start(
    local: LocalDeployment, python: Path = Path(sys.executable)
) -> tuple[subprocess.Popen[bytes], Deployment]:
    """Start supervisord in a process group of its own; on SIGTERM it ends everything. `python` is the serving
    environment's.
    """
    plan = prepare(local, python)
    process = subprocess.Popen(
        [str(python), "-m", "ops.supervisord", str(local.home)],
        cwd=ROOT,
        env={**proxies.without(os.environ), **environment(local, plan, python)},
        stdout=subprocess.DEVNULL,
        stderr=(local.home / "logs" / "supervisord.err").open("wb"),
        start_new_session=True,
        umask=0o077,  # logs tell of models and files, which nobody else on the machine need know
        preexec_fn=die_with_parent,  # noqa: PLW1509
    )
    return process, plan


def serve(local: LocalDeployment) -> int:
    """Run in the foreground until Ctrl-C or SIGTERM."""
    process, plan = start(local)
    stopping = False

    def stop_all(*_: object) -> None:
        nonlocal stopping
        if not stopping:
            print("\nconch: stopping; requests in flight are finished first", flush=True)
        stopping = True
        process.terminate()

    for name in (signal.SIGINT, signal.SIGTERM):
        signal.signal(name, stop_all)
    try:
        Starting(local, plan, process).wait(600)
        kserve = f"KServe: {local.kserve_http}, gRPC {local.kserve_grpc}"
        print(f"conch: ready on {url(local)} ({kserve}); logs: {local.home}/logs", flush=True)
    except LocalError:
        if not stopping:
            process.terminate()
            process.wait()
            raise
    if process.wait() < 0:
        print(
            f"conch: supervisord was killed (signal {-process.returncode}); what it ran is ending",
            file=sys.stderr,
        )
        return 1
    print("conch: stopped", flush=True)
    return 0


def restart(local: LocalDeployment) -> int:
    """Restart the instances one by one; meanwhile each one's requests fail over, so none is lost."""
    restart_all(Supervised(local, control(local)))
    return 0


def stop(local: LocalDeployment) -> int:
    """End everything; `serve`, which waits for it, ends too."""
    control(local).supervisor.shutdown()
    deadline = time.monotonic() + 120
    while local.socket.exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    return 0


def needs_vectors(local: LocalDeployment) -> int:
    """Return exit status 0 if Milvus Lite's environment is needed and missing, for `make serve`."""
    return 0 if wants_embedded_vectors(local.plan()) and not VECTORS_PYTHON.exists() else 1


def main() -> int:
    """Run the command line and return exit status 0, or 1 with one sentence."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("command", choices=["check", "serve", "restart", "stop", "needs-vectors"])
    command = parser.parse_args().command
    try:
        local = LocalDeployment.from_environment()
        commands = {"check": check, "serve": serve, "restart": restart, "stop": stop}
        return commands.get(command, needs_vectors)(local)
    except (
        LocalError,
        BadAlias,
        NotBack,
        CatalogError,
        Malformed,
        BundleRefused,
        Fault,
        ConnectionError,
        httpx.HTTPError,
    ) as error:
        print(f"conch: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
