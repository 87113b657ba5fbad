"""Conch without Docker: `python -m ops.process_mode serve | restart | stop | needs-vectors`.

supervisor runs a guard for each tritonserver, the gateway and nginx. Everything listens on 127.0.0.1 and
writes below one folder.
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
import time
from pathlib import Path
from xmlrpc.client import Fault

import httpx

from build.catalog import ROOT, CatalogError
from conch.contract import Malformed
from conch.deployment import Deployment

from .child import die_with_parent
from .guard.bundle import Refused
from .local import HOST, LocalDeployment, LocalError, access_policy, nginx_binary, nginx_values
from .nginx import write_nginx
from .restart import NotBack, restart_all
from .supervision import Supervised, control, supervisor_config, wants_embedded_vectors


def prepare(local: LocalDeployment, python: Path) -> Deployment:
    """Write everything a deployment needs below its home folder."""
    plan = local.plan()
    local.check_ports(plan)
    for folder in ("logs", "run", "nginx", "retrieval"):
        (local.home / folder).mkdir(parents=True, exist_ok=True)
    plan.save(local.home / "deployment.json")
    nginx = write_nginx(local.home / "nginx", nginx_values(local), access_policy(), plan)
    checked = subprocess.run(
        [nginx_binary(), "-t", "-q", "-c", nginx, "-p", local.home, "-e", "stderr"],
        capture_output=True,
        text=True,
        check=False,
    )
    if checked.returncode != 0:
        raise LocalError(f"nginx rejects its configuration: {checked.stderr.strip()}")
    with (local.home / "supervisord.conf").open("w") as file:
        supervisor_config(local, plan, python).write(file)
    return plan


def start(local: LocalDeployment, python: Path = Path(sys.executable)) -> subprocess.Popen[bytes]:
    """Start supervisord in a process group of its own; it ends everything when it gets SIGTERM. `python`: the
    serving environment's.
    """
    prepare(local, python)
    return subprocess.Popen(
        [str(python), "-m", "supervisor.supervisord", "-c", str(local.home / "supervisord.conf")],
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        umask=0o077,  # logs tell of models and files, which nobody else on the machine need know
        preexec_fn=die_with_parent,  # noqa: PLW1509
    )


def wait_ready(local: LocalDeployment, process: subprocess.Popen[bytes] | None, seconds: float) -> None:
    """Return when /health/ready says 200.

    Raises:
        LocalError: it did not within `seconds`, or supervisord ended.
    """
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if process and process.poll() is not None:
            break
        try:
            if httpx.get(f"http://{HOST}:{local.port}/health/ready", timeout=60).status_code == 200:
                return
        except httpx.HTTPError:
            pass
        time.sleep(0.2)
    raise LocalError(f"not ready within {seconds:g} s; the logs are in {local.home}/logs")


def serve(local: LocalDeployment) -> int:
    """Run in the foreground until Ctrl-C or SIGTERM."""
    process = start(local)
    for name in (signal.SIGINT, signal.SIGTERM):
        signal.signal(name, lambda *_: process.terminate())
    try:
        wait_ready(local, process, 600)
        print(
            f"conch: ready on http://{HOST}:{local.port} (KServe: {local.kserve_http}, gRPC "
            f"{local.kserve_grpc}); logs: {local.home}/logs",
            flush=True,
        )
    except LocalError as error:
        if process.poll() is None:
            process.terminate()
            process.wait()
            raise
        print(f"conch: stopped while starting ({error})", file=sys.stderr)
    if process.wait() < 0:
        print(
            f"conch: supervisord was killed (signal {-process.returncode}); what it ran is ending",
            file=sys.stderr,
        )
        return 1
    return 0


def restart(local: LocalDeployment) -> int:
    """Restart the instances one by one; each hands its requests to another one meanwhile, so no request is
    lost.
    """
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
    """Exit status 0: Milvus Lite's environment is wanted, for `make serve`."""
    return 0 if wants_embedded_vectors(local.plan()) else 1


def main() -> int:
    """Exit status 0, or 1 with one sentence."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("command", choices=["serve", "restart", "stop", "needs-vectors"])
    command = parser.parse_args().command
    try:
        local = LocalDeployment.from_environment()
        commands = {"serve": serve, "restart": restart, "stop": stop, "needs-vectors": needs_vectors}
        return commands[command](local)
    except (
        LocalError,
        NotBack,
        CatalogError,
        Malformed,
        Refused,
        Fault,
        ConnectionError,
        httpx.HTTPError,
    ) as error:
        print(f"conch: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
