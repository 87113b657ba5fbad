"""The deployment of process mode, from the environment: its instances, addresses and folders, and nginx's
values.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import stat
from dataclasses import dataclass
from pathlib import Path

from build.catalog import known, load_catalog, select, target_of
from build.targets import DEFAULT_WITHOUT_DOCKER
from conch.deployment import Deployment
from gateway.key_files import NoKeys, load_keys

from .environment import number
from .guard.supervise.bundle import check_bundle
from .nginx import AccessPolicy, NginxValues, Tls, tls_of
from .planning import Addresses, described, front_processes, make_plan

HOST = "127.0.0.1"
CERTIFICATE = {"TLS_CERT_FILE": "tls.crt", "TLS_KEY_FILE": "tls.key"}  # next to nginx.conf
KEYS, ADMINS = "API_KEYS_FILE", "ADMIN_KEYS_FILE"
PORTS = 81, 65_000  # KServe is 80 below, HTTPS 363 above
PLAIN = re.compile(r"[\w./-]{1,60}")  # what stands in nginx.conf and in socket addresses as it is
EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")


class LocalError(Exception):
    """Process mode cannot start or act; the message gives reason and remedy."""


def runtime_folder(port: int) -> Path:
    """Return a private folder for sockets, whose paths may have only about 100 characters, none of them
    special to nginx.

    Raises:
        LocalError: somebody else has made it, or none can be made.
    """
    places = (os.environ.get("XDG_RUNTIME_DIR", ""), os.environ.get("TMPDIR", ""), "/tmp")  # noqa: S108
    usable = [
        one for one in places if PLAIN.fullmatch(one) and os.access(one, os.W_OK) and Path(one).is_dir()
    ]
    if not usable:
        raise LocalError("no folder for sockets can be written to; set XDG_RUNTIME_DIR to one that can")
    path = Path(usable[0]) / f"conch-{os.getuid()}-{port}"
    path.mkdir(mode=0o700, exist_ok=True)
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise LocalError(
            f"{path} is not a folder that only this user can access; remove it, or set XDG_RUNTIME_DIR to "
            "another place"
        )
    return path


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
        """Derive it. PORT moves the whole block of ports: with PORT=9080 KServe is on 9000 and 9001, as with
        8080 it is on 8000 and 8001.

        Raises:
            LocalError: a variable that is not a number, or not one that can be.
            CatalogError: an unknown TARGET.
        """
        get = os.environ.get
        target = get("TARGET") or DEFAULT_WITHOUT_DOCKER
        alone = any(known(target).gpus(1, os.environ))  # engines leave the CPUs to others
        try:
            port = number("PORT", 8080, *PORTS)
            instances = number("INSTANCES", 0, 1, 64)
            kserve_http, kserve_grpc = (
                number(f"KSERVE_{kind}_PORT", port - 80 + i, 1, 65_535)
                for i, kind in enumerate(("HTTP", "GRPC"))
            )
            usual = front_processes(len(os.sched_getaffinity(0))) if alone else 2
            gateways = number("GATEWAYS", usual, 1, 64)
        except ValueError as error:
            raise LocalError(str(error)) from error
        return cls(
            model_id=get("MODEL_ID") or "",
            target=target,
            instances=instances,
            port=port,
            kserve_http=kserve_http,
            kserve_grpc=kserve_grpc,
            run=runtime_folder(port),
            gateways=gateways,
            engines=Path(get("ENGINES_DIR") or "engines").resolve(),
            home=Path(get("CONCH_HOME") or f".conch/{port}").resolve(),
        )

    @property
    def socket(self) -> Path:
        """Return supervisor's control socket."""
        return self.run / "supervisor"

    @property
    def nginx_sockets(self) -> dict[str, Path]:
        """Return where nginx listens besides its ports, by the field of `NginxValues`."""
        return {"internal": self.run / "kserve", "metrics": self.run / "nginx-metrics"}

    @property
    def addresses(self) -> Addresses:
        """Return internal addresses: each is a socket in a private folder; only nginx listens on ports."""
        gateways = tuple(f"unix:{self.run}/gateway-{i}" for i in range(self.gateways))
        return Addresses(f"unix:{self.run}/triton-{{i}}.http", f"unix:{self.run}/triton-{{i}}.grpc", gateways)

    def outline(self) -> Deployment:
        """Return the instances, on the CPUs this process may use, before their bundles are read.

        Raises:
            CatalogError: an unknown model, or fewer instances than models.
        """
        models = select(load_catalog(), self.model_id, self.target)
        bundles = [self.engines / model.id / target_of(model, self.target) for model in models]
        count = self.instances or max(2, len(models))
        cpus, gpus = sorted(os.sched_getaffinity(0)), known(self.target).gpus(count, os.environ)
        return make_plan(models, count, bundles, cpus, self.addresses, gpus)

    def plan(self) -> Deployment:
        """Return the instances with what their bundles say.

        Raises:
            CatalogError: see `outline`.
            BundleRefused: a bundle that is missing or must not be served.
        """
        plan = self.outline()
        for instance in plan.instances:
            check_bundle(Path(instance.bundle), instance.model_id, instance.gpus)
        return described(plan)

    def answers(self) -> bool:
        """Tell whether supervisor answers at its socket; a killed one leaves the file."""
        with socket.socket(socket.AF_UNIX) as probe:
            return probe.connect_ex(str(self.socket)) == 0

    def check_ports(self, plan: Deployment) -> None:
        """Check that every port is free.

        Raises:
            LocalError: names the port, its use and the variable that moves it.
        """
        if self.socket.exists() and self.answers():
            raise LocalError(
                f"a stack is running on PORT={self.port}; stop it with: make stop PORT={self.port}"
            )
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


def tls(local: LocalDeployment) -> Tls | None:
    """Return the certificate that the environment names; HTTPS is at PORT+363 (8443), or at TLS_PORT.

    Raises:
        LocalError: a file without the other, or one that cannot be read.
    """
    get = os.environ.get
    try:
        files = {name: Path(get(name) or "").resolve() for name in CERTIFICATE}
        port = number("TLS_PORT", local.port + 363, 1, 65_535)
        certificate, key = CERTIFICATE.values()
        found = tls_of(os.environ, certificate, key, port, port)
        for file in files.values() if found else ():
            file.read_bytes()
    except (ValueError, OSError) as error:
        raise LocalError(str(error)) from error
    return found


def link_certificate(local: LocalDeployment) -> None:
    """Link certificate and key, whatever their names, next to nginx.conf under fixed names."""
    for name, link in CERTIFICATE.items():
        path = local.home / "nginx" / link
        path.unlink(missing_ok=True)
        if given := os.environ.get(name):
            path.symlink_to(Path(given).resolve())


def nginx_values(local: LocalDeployment) -> NginxValues:
    """Return folders, addresses and ports of this deployment. nginx runs in its configuration's folder with
    relative paths, so the absolute path may be any that the file system allows.
    """
    return NginxValues(
        run="../run",
        listen=HOST,
        port=local.port,
        kserve=local.kserve_http,
        grpc=local.kserve_grpc,
        internal=f"unix:{local.nginx_sockets['internal']}",
        metrics=f"unix:{local.nginx_sockets['metrics']}",
        instance_http=local.port + 20,
        instance_grpc=local.port + 40,
        max_body=os.environ.get("MAX_BODY") or "110m",
        workers=front_processes(len(os.sched_getaffinity(0))),
        user="user root;" if os.getuid() == 0 else "",
        tls=tls(local),
    )


def url(local: LocalDeployment) -> str:
    """Return the URL for clients."""
    secure = tls(local)
    return f"https://{HOST}:{secure.port}" if secure else f"http://{HOST}:{local.port}"


def access_policy() -> AccessPolicy:
    """Return keys and request rates, as in Docker.

    Raises:
        LocalError: a file of keys without one, or a rate that is none.
    """
    keys, admins = os.environ.get(KEYS), os.environ.get(ADMINS)
    try:
        for file in filter(None, (keys, admins)):
            load_keys(Path(file), required=True)
        burst = number("RATE_BURST", 20, 0, 100_000)
        found = AccessPolicy.of(os.environ, keys=bool(keys), burst=burst)
        found.values()
    except (NoKeys, ValueError, OSError) as error:
        raise LocalError(str(error)) from error
    return found


def nginx_binary() -> str:
    """Find nginx on PATH or in /usr/sbin.

    Raises:
        LocalError: not installed.
    """
    found = shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    if not found:
        raise LocalError("nginx is not installed; run: apt-get install --no-install-recommends nginx-light")
    return found
