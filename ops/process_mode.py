"""Conch without Docker: `python -m ops.process_mode serve | restart | stop`.

supervisor runs a guard for each tritonserver, the gateway and nginx. Everything listens on 127.0.0.1 and
writes below one folder.
"""

from __future__ import annotations

import argparse
import configparser
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from xmlrpc.client import Fault, ServerProxy

import httpx
from supervisor.xmlrpc import SupervisorTransport

from build.catalog import ROOT, CatalogError, known, load_catalog, select
from build.targets import DEFAULT_WITHOUT_DOCKER
from conch.contract import Malformed
from conch.deployment import Deployment, Instance
from gateway.keys import NoKeys, load_keys
from gateway.settings import Settings
from ops.child import die_with_parent
from ops.guard.bundle import Refused, check_bundle
from ops.guard.server import ONE_THREAD

from .environment import documented
from .nginx import AccessPolicy, NginxValues, Tls, tls_of, write_nginx
from .planning import Addresses, described, make_plan
from .restart import NotBack, restart_all

HOST = "127.0.0.1"
TRITONS = "tritons"  # supervisor's group
KEYS, ADMINS = "API_KEYS_FILE", "ADMIN_KEYS_FILE"
EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")


def runtime_folder(port: int) -> Path:
    """A folder for sockets, whose paths may have about 100 characters only. It is this user's alone.

    Raises:
        LocalError: somebody else has made it.
    """
    path = Path(os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir()) / f"conch-{os.getuid()}-{port}"
    path.mkdir(mode=0o700, exist_ok=True)
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise LocalError(
            f"{path} is not a folder of this user alone; remove it, or set XDG_RUNTIME_DIR to another place"
        )
    return path


class LocalError(Exception):
    """Process mode cannot start or act; the message says why and what to do."""


@dataclass(frozen=True)
class LocalDeployment:
    """Ports and folders of one local deployment, all derived from the environment."""

    model_id: str
    target: str
    instances: int  # 0: two, or one for each model if there are more
    port: int
    kserve_http: int
    kserve_grpc: int
    run: Path
    gateways: int
    engines: Path
    home: Path

    @classmethod
    def from_environment(cls) -> LocalDeployment:
        """PORT moves the whole block of ports: with PORT=9080 KServe is on 9000 and 9001, as with 8080 it is
        on 8000 and 8001.
        """
        get = os.environ.get
        port = int(get("PORT") or 8080)
        base = port - 80
        return cls(
            model_id=get("MODEL_ID") or "",
            target=get("TARGET") or DEFAULT_WITHOUT_DOCKER,
            instances=int(get("INSTANCES") or 0),
            port=port,
            kserve_http=int(get("KSERVE_HTTP_PORT") or base),
            kserve_grpc=int(get("KSERVE_GRPC_PORT") or base + 1),
            run=runtime_folder(port),
            gateways=int(get("GATEWAYS") or 2),
            engines=Path(get("ENGINES_DIR") or "engines").resolve(),
            home=Path(get("CONCH_HOME") or f".conch/{port}").resolve(),
        )

    @property
    def socket(self) -> Path:
        """Supervisor's control socket."""
        return self.run / "supervisor"

    @property
    def addresses(self) -> Addresses:
        """Every inner door is a socket in a folder that other users may not enter; only nginx listens on
        ports.
        """
        gateways = tuple(f"unix:{self.run}/gateway-{i}" for i in range(self.gateways))
        return Addresses(f"unix:{self.run}/triton-{{i}}.http", f"unix:{self.run}/triton-{{i}}.grpc", gateways)

    def plan(self) -> Deployment:
        """The instances, on the CPUs this process may use."""
        models = select(load_catalog(), self.model_id)
        bundles = [self.engines / model.id / self.target for model in models]
        count = self.instances or max(2, len(models))
        plan = make_plan(
            models,
            count,
            bundles,
            sorted(os.sched_getaffinity(0)),
            self.addresses,
            known(self.target).gpus(count, os.environ),
        )
        for instance in plan.instances:
            check_bundle(Path(instance.bundle), instance.model_id, instance.gpus)
        return described(plan)

    def check_ports(self, plan: Deployment) -> None:
        """Every port is free.

        Raises:
            LocalError: names the port, its use and the variable that moves it.
        """
        first, last = map(int, EPHEMERAL.read_text().split()) if EPHEMERAL.exists() else (0, -1)
        if any(first <= port <= last for port in (self.port, self.kserve_http, self.kserve_grpc)):
            print(
                f"conch: PORT={self.port} lies among the ports that outgoing connections use ({first} to "
                f"{last}); one may be taken at times"
            )
        uses = {self.port: "HTTP", self.kserve_http: "KServe HTTP", self.kserve_grpc: "KServe gRPC"}
        if found := tls(self):
            uses[found.port] = "HTTPS"
        for i in range(len(plan.instances)):
            uses |= {self.port + 20 + i: f"triton-{i} HTTP", self.port + 40 + i: f"triton-{i} gRPC"}
        for port, use in uses.items():
            with socket.socket() as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                try:
                    probe.bind((HOST, port))
                except OSError as error:
                    raise LocalError(
                        f"port {port} ({use}) is taken ({error.strerror}); stop what uses it, or choose "
                        "another block with PORT=…"
                    ) from None


def nginx_binary() -> str:
    """Nginx on PATH or in /usr/sbin.

    Raises:
        LocalError: not installed.
    """
    found = shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    if not found:
        raise LocalError("nginx is not installed; run: apt-get install --no-install-recommends nginx-light")
    return found


def tls(layout: LocalDeployment) -> Tls | None:
    """The certificate that the environment names; HTTPS is at PORT+363 (8443), or at TLS_PORT.

    Raises:
        LocalError: a file without the other, or one that cannot be read.
    """
    get = os.environ.get
    try:
        certificate, key = (Path(get(name) or "").resolve() for name in ("TLS_CERT_FILE", "TLS_KEY_FILE"))
        port = int(get("TLS_PORT") or layout.port + 363)
        found = tls_of(os.environ, str(certificate), str(key), port, port)
        for file in (certificate, key) if found else ():
            file.read_bytes()
    except (ValueError, OSError) as error:
        raise LocalError(str(error)) from error
    return found


def nginx_values(layout: LocalDeployment) -> NginxValues:
    """Folders, addresses and ports of this deployment."""
    return NginxValues(
        run=str(layout.home / "run"),
        conf=str(layout.home / "nginx"),
        listen=HOST,
        port=layout.port,
        kserve=layout.kserve_http,
        grpc=layout.kserve_grpc,
        internal=f"unix:{layout.run}/kserve",
        instance_http=layout.port + 20,
        instance_grpc=layout.port + 40,
        max_body=os.environ.get("MAX_BODY") or "110m",
        user="user root;" if os.getuid() == 0 else "",
        tls=tls(layout),
    )


def _commands(layout: LocalDeployment, plan: Deployment, python: Path) -> dict[str, str]:
    """Each process by name. They stop in the opposite order, each when it has finished: the gateways, nginx,
    which they need for that, the tritonservers.
    """
    home = layout.home
    child = f"{python} -m ops.child"  # whoever supervises may be killed: then they end, too
    guard = f"{child} --exec {python} -m ops.guard --deployment {home}/deployment.json --state-dir {home}"
    gateway = f"{child} --exec {python} -m gateway"
    return {
        **{instance.name: f"{guard} --instance {instance.index}" for instance in plan.instances},
        "nginx": f"{child} {nginx_binary()} -c {home}/nginx/nginx.conf -p {home} -e stderr",
        **{f"gateway-{i}": f"{gateway} {address[5:]}" for i, address in enumerate(plan.gateways)},
    }


def _environment(layout: LocalDeployment) -> dict[str, str]:
    """What every process is told; variables of .env.example that the gateway knows are handed on."""
    asked = {name: os.environ[name] for name in documented() if os.environ.get(name)}
    return {
        "CONCH_DEPLOYMENT": str(layout.home / "deployment.json"),
        "CONCH_KSERVE_URL": f"unix:{layout.run}/kserve",
        "CONCH_GATEWAYS": str(layout.gateways),
        "CONCH_API_KEYS_REQUIRED": os.environ.get(KEYS, ""),
        "CONCH_ADMIN_KEYS_REQUIRED": os.environ.get(ADMINS, ""),
        "PYTHONUNBUFFERED": "1",
        **{name: os.environ.get(name, threads) for name, threads in ONE_THREAD.items()},
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


def supervisor_config(layout: LocalDeployment, plan: Deployment, python: Path) -> configparser.ConfigParser:
    """One program for each process; the tritonservers are a group and stop together."""
    home, environment = layout.home, _environment(layout)
    config = configparser.ConfigParser(interpolation=None)
    config["supervisord"] = {
        "nodaemon": "true",
        "logfile": str(home / "logs/supervisord.log"),
        "pidfile": str(home / "run/supervisord.pid"),
        "loglevel": "info",
    }
    config["unix_http_server"] = {"file": str(layout.socket), "chmod": "0600"}
    config["rpcinterface:supervisor"] = {
        "supervisor.rpcinterface_factory": "supervisor.rpcinterface:make_main_rpcinterface"
    }
    gpus = {one.name: {"CUDA_VISIBLE_DEVICES": one.gpus} for one in plan.instances if one.gpus}
    for order, (name, command) in enumerate(_commands(layout, plan, python).items(), 1):
        program = _program(home, name, command, {**environment, **gpus.get(name, {})})
        config[f"program:{name}"] = {**program, "priority": str(order)}
    members = ",".join(instance.name for instance in plan.instances)
    config[f"group:{TRITONS}"] = {"programs": members, "priority": "0"}
    return config


def access_policy() -> AccessPolicy:
    """Keys and request rates, as in Docker.

    Raises:
        LocalError: a file of keys without one, or a rate that is none.
    """
    keys, admins = os.environ.get(KEYS), os.environ.get(ADMINS)
    try:
        for file in filter(None, (keys, admins)):
            load_keys(Path(file), required=True)
        found = AccessPolicy(
            keys=bool(keys),
            rate=os.environ.get("RATE_LIMIT", ""),
            burst=int(os.environ.get("RATE_BURST") or 20),
            hosts=os.environ.get("ALLOWED_HOSTS", ""),
        )
        found.values()
    except (NoKeys, ValueError, OSError) as error:
        raise LocalError(str(error)) from error
    return found


def prepare(layout: LocalDeployment, python: Path) -> Deployment:
    """Write everything a deployment needs below its home folder."""
    plan = layout.plan()
    layout.check_ports(plan)
    for folder in ("logs", "run", "nginx"):
        (layout.home / folder).mkdir(parents=True, exist_ok=True)
    plan.save(layout.home / "deployment.json")
    nginx = write_nginx(layout.home / "nginx", nginx_values(layout), access_policy(), plan)
    checked = subprocess.run(
        [nginx_binary(), "-t", "-q", "-c", nginx, "-p", layout.home, "-e", "stderr"],
        capture_output=True,
        text=True,
        check=False,
    )
    if checked.returncode != 0:
        raise LocalError(f"nginx refuses its configuration: {checked.stderr.strip()}")
    with (layout.home / "supervisord.conf").open("w") as file:
        supervisor_config(layout, plan, python).write(file)
    return plan


def start(layout: LocalDeployment, python: Path = Path(sys.executable)) -> subprocess.Popen[bytes]:
    """Start supervisord in a process group of its own; it ends everything when it gets SIGTERM. `python`: the
    serving environment's.
    """
    prepare(layout, python)
    return subprocess.Popen(
        [str(python), "-m", "supervisor.supervisord", "-c", str(layout.home / "supervisord.conf")],
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        preexec_fn=die_with_parent,  # noqa: PLW1509
    )


def wait_ready(layout: LocalDeployment, process: subprocess.Popen[bytes] | None, seconds: float) -> None:
    """Return when /health/ready says 200.

    Raises:
        LocalError: it did not within `seconds`, or supervisord ended.
    """
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if process and process.poll() is not None:
            break
        try:
            if httpx.get(f"http://{HOST}:{layout.port}/health/ready", timeout=60).status_code == 200:
                return
        except httpx.HTTPError:
            pass
        time.sleep(0.2)
    raise LocalError(f"not ready within {seconds:g} s; the logs are in {layout.home}/logs")


def serve(layout: LocalDeployment) -> int:
    """Run in the foreground until Ctrl-C or SIGTERM."""
    process = start(layout)
    for name in (signal.SIGINT, signal.SIGTERM):
        signal.signal(name, lambda *_: process.terminate())
    try:
        wait_ready(layout, process, 600)
        print(
            f"conch: ready on http://{HOST}:{layout.port} (KServe: {layout.kserve_http}, gRPC "
            f"{layout.kserve_grpc}); logs: {layout.home}/logs",
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


def control(layout: LocalDeployment) -> ServerProxy:
    """Supervisor's XML-RPC interface."""
    if not layout.socket.exists():
        raise LocalError(
            f"nothing runs with PORT={layout.port}; start it with: make serve PORT={layout.port}"
        )
    return ServerProxy(
        "http://localhost", transport=SupervisorTransport(None, None, f"unix://{layout.socket}")
    )


@dataclass(frozen=True)
class Supervised:
    """The restart's view of a local deployment."""

    layout: LocalDeployment
    server: ServerProxy

    def plan(self) -> Deployment:
        """What `serve` wrote."""
        return Deployment.load(self.layout.home / "deployment.json")

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
            transport = httpx.HTTPTransport(uds=f"{self.layout.run}/kserve")
            with httpx.Client(transport=transport, base_url="http://nginx", timeout=5) as client:
                return client.get(f"/instances/{instance.index}/metrics").text
        return ""


def restart(layout: LocalDeployment) -> int:
    """Restart the instances one by one; each hands its requests to another one meanwhile, so no request is
    lost.
    """
    restart_all(Supervised(layout, control(layout)))
    return 0


def stop(layout: LocalDeployment) -> int:
    """End everything; `serve`, which waits for it, ends too."""
    control(layout).supervisor.shutdown()
    deadline = time.monotonic() + 120
    while layout.socket.exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    return 0


def main() -> int:
    """Exit status 0, or 1 with one sentence."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("command", choices=["serve", "restart", "stop"])
    command = parser.parse_args().command
    try:
        layout = LocalDeployment.from_environment()
        return {"serve": serve, "restart": restart, "stop": stop}[command](layout)
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
