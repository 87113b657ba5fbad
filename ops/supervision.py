"""Process mode's processes: what supervisor is told to run, and how it is asked to act."""

from __future__ import annotations

import configparser
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from xmlrpc.client import Fault, ServerProxy

import httpx
from supervisor.xmlrpc import SupervisorTransport

from build.catalog import ROOT
from conch import blas
from conch.deployment import Deployment, Instance
from gateway.settings import Settings

from .environment import documented
from .local import ADMINS, KEYS, LocalDeployment, LocalError, nginx_binary

TRITONS = "tritons"  # supervisor's group
VECTORS_PYTHON = ROOT / ".venv/vectors/bin/python"  # Milvus Lite's; its libraries want another numpy


def _commands(local: LocalDeployment, plan: Deployment, python: Path) -> dict[str, str]:
    """Each process by name. They stop in the opposite order, each when it has finished: the gateways, nginx,
    which they need for that, the tritonservers.
    """
    home = local.home
    child = f"{python} -m ops.child"  # whoever supervises may be killed: then they end, too
    guard = f"{child} --exec {python} -m ops.guard --deployment {home}/deployment.json --state-dir {home}"
    gateway = f"{child} --exec {python} -m gateway"
    left = " ".join(f"--unlink {path}" for path in local.nginx_sockets.values())
    nginx = f"{child} {left} {nginx_binary()}"
    lite = f"{child} --exec {VECTORS_PYTHON} -m ops.vectors {home}/retrieval/vectors {local.run}/vectors"
    return {
        **{instance.name: f"{guard} --instance {instance.index}" for instance in plan.instances},
        **({"vectors": lite} if embedded_vectors(plan) else {}),
        "nginx": f"{nginx} -c {home}/nginx/nginx.conf -p {home} -e stderr",
        **{f"gateway-{i}": f"{gateway} {address[5:]}" for i, address in enumerate(plan.gateways)},
    }


def wants_embedded_vectors(plan: Deployment) -> bool:
    """A model for documents is served, so files and vector stores are, and nobody names another Milvus."""
    return not os.environ.get("VECTORS_URL") and any(pool.embeds_documents for pool in plan.pools)


def embedded_vectors(plan: Deployment) -> bool:
    """Milvus Lite is one of the processes: it is wanted, and its environment is there."""
    return wants_embedded_vectors(plan) and VECTORS_PYTHON.exists()


def _databases(local: LocalDeployment, plan: Deployment) -> dict[str, str]:
    """Where files and vectors are kept, unless the environment names other places."""
    if not embedded_vectors(plan) and not os.environ.get("VECTORS_URL"):
        return {}
    return {
        "CONCH_DOCUMENTS_URL": f"sqlite:{local.home}/retrieval/documents.sqlite",
        "CONCH_VECTORS_URL": f"unix:{local.run}/vectors",
    }


def environment(local: LocalDeployment, plan: Deployment) -> dict[str, str]:
    """What every process is told; variables of .env.example that the gateway knows are handed on."""
    asked = {name: os.environ[name] for name in documented() if os.environ.get(name)}
    return {
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


def _program(home: Path, name: str, command: str, environment: Mapping[str, str]) -> dict[str, str]:
    return {
        "command": command,
        "directory": str(ROOT),
        "environment": ",".join(f'{key}="{value}"' for key, value in environment.items()),
        "autorestart": "true",
        "startsecs": "0",
        "startretries": "1000",
        "stopsignal": "QUIT" if name == "nginx" else "TERM",
        "stopwaitsecs": "45" if name.startswith("triton") else "75",
        "redirect_stderr": "true",
        "stdout_logfile": str(home / f"logs/{name}.log"),
        "stdout_logfile_maxbytes": "50MB",
        "stdout_logfile_backups": "2",
    }


def supervisor_config(local: LocalDeployment, plan: Deployment, python: Path) -> configparser.ConfigParser:
    """One program for each process; the tritonservers are a group and stop together."""
    home, variables = local.home, environment(local, plan)
    config = configparser.ConfigParser(interpolation=None)
    config["supervisord"] = {
        "nodaemon": "true",
        "logfile": str(home / "logs/supervisord.log"),
        "pidfile": str(home / "run/supervisord.pid"),
        "loglevel": "info",
    }
    config["unix_http_server"] = {"file": str(local.socket), "chmod": "0600"}
    config["rpcinterface:supervisor"] = {
        "supervisor.rpcinterface_factory": "supervisor.rpcinterface:make_main_rpcinterface"
    }
    gpus = {one.name: {"CUDA_VISIBLE_DEVICES": one.gpus} for one in plan.instances if one.gpus}
    for order, (name, command) in enumerate(_commands(local, plan, python).items(), 1):
        program = _program(home, name, command, {**variables, **gpus.get(name, {})})
        config[f"program:{name}"] = {**program, "priority": str(order)}
    members = ",".join(instance.name for instance in plan.instances)
    config[f"group:{TRITONS}"] = {"programs": members, "priority": "0"}
    return config


def control(local: LocalDeployment) -> ServerProxy:
    """Supervisor's XML-RPC interface."""
    if not local.socket.exists():
        raise LocalError(
            f"no stack is running on PORT={local.port}; start it with: make serve PORT={local.port}"
        )
    return ServerProxy(
        "http://localhost", transport=SupervisorTransport(None, None, f"unix://{local.socket}")
    )


@dataclass(frozen=True)
class Supervised:
    """The restart's view of a local deployment."""

    local: LocalDeployment
    server: ServerProxy

    def plan(self) -> Deployment:
        """What `serve` wrote."""
        return Deployment.load(self.local.home / "deployment.json")

    def restart(self, instance: Instance) -> None:
        """A signal through supervisor; a guard that does not run is started."""
        name = f"{TRITONS}:{instance.name}"
        try:
            self.server.supervisor.signalProcess(name, "HUP")
        except Fault as fault:
            if "NOT_RUNNING" not in fault.faultString:
                raise
            with suppress(Fault):  # supervisor is about to do it itself
                self.server.supervisor.startProcess(name, False)

    def metrics(self, instance: Instance) -> str:
        """Through nginx's internal listener: neither keys nor certificates are needed."""
        with suppress(httpx.HTTPError):
            transport = httpx.HTTPTransport(uds=str(self.local.nginx_sockets["internal"]))
            with httpx.Client(transport=transport, base_url="http://nginx", timeout=5) as client:
                return client.get(f"/instances/{instance.index}/metrics").text
        return ""
