"""Process mode's processes: supervisor's configuration and control."""

from __future__ import annotations

import configparser
import os
import shlex
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from xmlrpc.client import Fault, ServerProxy

import httpx
from pydantic import ValidationError
from supervisor.xmlrpc import SupervisorTransport

from build.catalog import ROOT
from conch import blas
from conch.deployment import Deployment, Instance
from gateway.explanations import explained
from gateway.settings import Settings

from .environment import documented
from .local import ADMINS, KEYS, LocalDeployment, LocalError, nginx_binary

TRITONS, GATEWAYS = "tritons", "gateways"  # supervisor's groups
NGINX = "-c nginx.conf -p . -e stderr"  # in its own folder
VECTORS_PYTHON = ROOT / ".venv/vectors/bin/python"  # Milvus Lite's; its libraries want another numpy


def _commands(local: LocalDeployment, plan: Deployment) -> dict[str, str]:
    """Return each process by name as a line for sh, which reads every path from its environment, where it may
    have any character. They stop in reverse order, each when it has finished: the gateways, nginx, which they
    need for that, the tritonservers.
    """
    child = '"$CONCH_PYTHON" -m ops.child'  # the supervisor may be killed: then they end, too
    guard = '"$CONCH_PYTHON" -m ops.guard --deployment "$CONCH_DEPLOYMENT" --state-dir "$CONCH_STATE"'
    gateway = f'{child} --exec "$CONCH_PYTHON" -m gateway'
    left = " ".join(f"--unlink {path}" for path in local.nginx_sockets.values())
    lite = f'{child} --exec "$CONCH_VECTORS_PYTHON" -m ops.vectors "$CONCH_STATE/retrieval/vectors"'
    return {
        **{one.name: f"{child} --exec {guard} --instance {one.index}" for one in plan.instances},
        **({"vectors": f"{lite} {local.run}/vectors"} if embedded_vectors(plan) else {}),
        "nginx": f'{child} {left} --cwd "$CONCH_STATE/nginx" {nginx_binary()} {NGINX}',
        **{f"gateway-{i}": f"{gateway} {address[5:]}" for i, address in enumerate(plan.gateways)},
    }


def wants_embedded_vectors(plan: Deployment) -> bool:
    """Tell whether Milvus Lite is needed: a model for documents is served, so files and vector stores are,
    and no other Milvus is configured.
    """
    return not os.environ.get("VECTORS_URL") and any(pool.embeds_documents for pool in plan.pools)


def embedded_vectors(plan: Deployment) -> bool:
    """Tell whether Milvus Lite is one of the processes: it is needed, and its environment exists."""
    return wants_embedded_vectors(plan) and VECTORS_PYTHON.exists()


def _databases(local: LocalDeployment, plan: Deployment) -> dict[str, str]:
    """Return where files and vectors are stored, unless the environment names other places."""
    if not embedded_vectors(plan) and not os.environ.get("VECTORS_URL"):
        return {}
    return {
        "CONCH_DOCUMENTS_URL": f"sqlite:{local.home}/retrieval/documents.sqlite",
        "CONCH_VECTORS_URL": f"unix:{local.run}/vectors",
    }


def environment(local: LocalDeployment, plan: Deployment, python: Path) -> dict[str, str]:
    """Return the environment of each process; variables of .env.example that the gateway knows are passed."""
    asked = {name: os.environ[name] for name in documented() if os.environ.get(name)}
    return {
        "CONCH_PYTHON": str(python),
        "CONCH_VECTORS_PYTHON": str(VECTORS_PYTHON),
        "CONCH_ROOT": str(ROOT),
        "CONCH_STATE": str(local.home),
        "CONCH_DEPLOYMENT": str(local.home / "deployment.json"),
        "CONCH_KSERVE_URL": f"unix:{local.nginx_sockets['internal']}",
        "CONCH_GATEWAYS": str(local.gateways),
        "CONCH_API_KEYS_REQUIRED": os.environ.get(KEYS, ""),
        "CONCH_ADMIN_KEYS_REQUIRED": os.environ.get(ADMINS, ""),
        "PYTHONUNBUFFERED": "1",
        **_databases(local, plan),
        **blas.settings(),
        **{f"CONCH_{name}": value for name, value in asked.items() if name.lower() in Settings.model_fields},
    }


def check_settings(variables: Mapping[str, str]) -> None:
    """Check the gateway's settings before anything starts.

    Raises:
        LocalError: one cannot be read; the message names the variable as the user has set it.
    """
    given = {name.removeprefix("CONCH_"): value for name, value in {**os.environ, **variables}.items()}
    known = {name.lower(): value for name, value in given.items() if name.lower() in Settings.model_fields}
    try:
        Settings(**{"deployment": "", **known})  # type: ignore[arg-type]
    except ValidationError as error:
        rows = error.errors()
        name = str(rows[0]["loc"][0]).upper()
        own = name if os.environ.get(name) else f"CONCH_{name}"
        raise LocalError(f"{own}{explained(rows[:1])}; change it, or unset it") from error


def _program(name: str, command: str, gpus: str) -> dict[str, str]:
    return {
        "command": "/bin/sh -c " + shlex.quote(f'cd "$CONCH_ROOT" && exec {command}'),
        **({"environment": f'CUDA_VISIBLE_DEVICES="{gpus}"'} if gpus else {}),
        "autorestart": "true",
        "startsecs": "1",  # what ends sooner is started again after a growing delay
        "startretries": "1000",
        "stopsignal": "QUIT" if name == "nginx" else "TERM",
        "stopwaitsecs": "45" if name.startswith("triton") else "75",
        "redirect_stderr": "true",
        "stdout_logfile": f"logs/{name}.log",
        "stdout_logfile_maxbytes": "50MB",
        "stdout_logfile_backups": "2",
    }


def supervisor_config(local: LocalDeployment, plan: Deployment) -> configparser.ConfigParser:
    """Write one program for each process; tritonservers and gateways are groups, which stop together. Paths
    are relative to supervisord's own folder, or in its environment: in this file spaces, quotes, semicolons
    and per cent signs have meanings of their own.
    """
    config = configparser.ConfigParser(interpolation=None)
    config["supervisord"] = {
        "nodaemon": "true",
        "logfile": "logs/supervisord.log",
        "childlogdir": "logs",  # otherwise TMPDIR, as a format
        "pidfile": "run/supervisord.pid",
        "loglevel": "info",
    }
    config["unix_http_server"] = {"file": str(local.socket), "chmod": "0600"}
    config["rpcinterface:supervisor"] = {
        "supervisor.rpcinterface_factory": "supervisor.rpcinterface:make_main_rpcinterface"
    }
    gpus = {one.name: one.gpus for one in plan.instances}
    for order, (name, command) in enumerate(_commands(local, plan).items(), 1):
        config[f"program:{name}"] = {**_program(name, command, gpus.get(name, "")), "priority": str(order)}
    gateways = [f"gateway-{i}" for i in range(len(plan.gateways))]
    for name, members, priority in ((TRITONS, list(gpus), "0"), (GATEWAYS, gateways, "999")):
        config[f"group:{name}"] = {"programs": ",".join(members), "priority": priority}
    return config


def control(local: LocalDeployment) -> ServerProxy:
    """Return supervisor's XML-RPC interface."""
    if not local.socket.exists():
        raise LocalError(
            f"no stack is running on PORT={local.port}; start it with: make serve PORT={local.port}"
        )
    return ServerProxy(
        "http://localhost", transport=SupervisorTransport(None, None, f"unix://{local.socket}")
    )


@dataclass(frozen=True)
class Supervised:
    """A local deployment, for the restart."""

    local: LocalDeployment
    server: ServerProxy

    def plan(self) -> Deployment:
        """Return what `serve` wrote."""
        return Deployment.load(self.local.home / "deployment.json")

    def restart(self, instance: Instance) -> None:
        """Send a signal through supervisor; a guard that does not run is started."""
        name = f"{TRITONS}:{instance.name}"
        try:
            self.server.supervisor.signalProcess(name, "HUP")
        except Fault as fault:
            if "NOT_RUNNING" not in fault.faultString:
                raise
            with suppress(Fault):  # supervisor is about to do it itself
                self.server.supervisor.startProcess(name, False)

    def metrics(self, instance: Instance) -> str:
        return asked(self.local, f"/instances/{instance.index}/metrics")


def asked(local: LocalDeployment, path: str) -> str:
    """Return the answer of nginx's internal listener, which needs neither keys nor certificates; empty
    without one.
    """
    with suppress(httpx.HTTPError):
        socket = str(local.nginx_sockets["internal"])
        transport = httpx.HTTPTransport(verify=False, uds=socket)  # it is plain HTTP
        with httpx.Client(transport=transport, base_url="http://nginx", timeout=5) as client:
            answer = client.get(path)
            return answer.text if answer.status_code == 200 else ""
    return ""
