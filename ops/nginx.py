"""Write nginx's configuration from the template and the plan."""

from __future__ import annotations

import re
import string
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from math import ceil
from pathlib import Path

from conch.deployment import Deployment

TEMPLATES = Path(__file__).parent.parent / "docker" / "nginx"
HOST = re.compile(r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?")
# The schemes of apps (app://, capacitor://), too; pages in files have the origin null.
ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[a-z0-9.-]+(:\d{1,5})?|null")
# nginx sends no header that is empty.
CORS = (
    "add_header Access-Control-Allow-Origin $conch_cors always; add_header Vary $conch_vary always; "
    "add_header Access-Control-Expose-Headers $conch_exposed always;"
)
RATE = re.compile(r"([1-9]\d*)r/([sm])")


@dataclass(frozen=True)
class Tls:
    """A certificate (with its chain) and its key, as files that nginx reads; the port of HTTPS, as nginx
    listens and as clients see it (`public`); seconds of Strict-Transport-Security (0: not sent).
    """

    certificate: str
    key: str
    port: int
    public: int
    hsts: int = 0

    def values(self, listen: str) -> dict[str, str]:
        """Return the template's lines."""
        target = "https://$host" if self.public == 443 else f"https://$host:{self.public}"
        hsts = f'add_header Strict-Transport-Security "max-age={self.hsts}";' if self.hsts else ""
        return {
            "CERTIFICATE": f"ssl_certificate {self.certificate};\n    ssl_certificate_key {self.key};\n"
            "    ssl_protocols TLSv1.2 TLSv1.3;\n    ssl_session_cache shared:tls:10m;\n"
            "    ssl_session_tickets off;",
            "TLS": f"listen {listen}:{self.port} ssl;\n"
            f"        if ($conch_plain) {{\n            return 308 {target}$request_uri;\n        }}",
            "SSL": " ssl",
            "HSTS": hsts,
        }


NO_TLS = dict.fromkeys(("CERTIFICATE", "TLS", "SSL", "HSTS"), "")


def tls_of(environment: Mapping[str, str], certificate: str, key: str, port: int, public: int) -> Tls | None:
    """Read TLS_CERT_FILE, TLS_KEY_FILE and TLS_HSTS; None where neither file is named.

    Raises:
        ValueError: one file without the other, or an age that is not a number.
    """
    given = [bool(environment.get(name)) for name in ("TLS_CERT_FILE", "TLS_KEY_FILE")]
    if not any(given):
        return None
    if not all(given):
        raise ValueError("TLS needs both files; set TLS_CERT_FILE and TLS_KEY_FILE, or neither")
    if not (hsts := environment.get("TLS_HSTS") or "0").isdecimal():
        raise ValueError(
            f"TLS_HSTS={hsts!r} is not a number of seconds; write 31536000 for a year, or unset it"
        )
    return Tls(certificate, key, port, public, int(hsts))


@dataclass(frozen=True)
class NginxValues:
    """Values of the template's ${CONCH_…}: the folder for what nginx writes, the public address and ports,
    the gateway's own listener (in nginx's form: address and port, or unix:PATH), the largest body.

    Attributes:
        workers: nginx's processes
        instance_http: first port at which each instance is reached by host and port alone, as
            `instance_grpc`; 0 for none
        metrics: address of nginx's own metrics, in the form of `internal`
        tls: None where nginx serves plain HTTP
    """

    run: str
    listen: str
    port: int
    kserve: int
    grpc: int
    internal: str
    metrics: str
    max_body: str
    workers: int = 2
    user: str = ""
    instance_http: int = 0
    instance_grpc: int = 0
    tls: Tls | None = None

    def instances(self, count: int) -> dict[str, str]:
        """Return the template's lines for the instances' own ports."""
        firsts = {"KSERVE_PORTS": self.instance_http, "GRPC_PORTS": self.instance_grpc}
        if not all(firsts.values()):
            return {**dict.fromkeys(firsts, ""), "PORT_ROUTES": ""}
        ssl = " ssl" if self.tls else ""
        kinds = {"KSERVE_PORTS": ssl, "GRPC_PORTS": f"{ssl} http2"}
        listens = {
            name: " ".join(f"listen {self.listen}:{first + i}{kinds[name]};" for i in range(count))
            for name, first in firsts.items()
        }
        routes = " ".join(f'{first + i} "instance:{i}";' for first in firsts.values() for i in range(count))
        return {**listens, "PORT_ROUTES": routes}


@dataclass(frozen=True)
class AccessPolicy:
    """API keys, request rate, host names and origins: whether keys are required, the rate as nginx writes it
    ("10r/s", "600r/m", empty for no limit), where no key is required, allowed host names besides localhost
    and addresses ("*": any), and origins of other sites' pages that may send requests ("*": all), separated
    by commas.
    """

    keys: bool = False
    rate: str = ""
    burst: int = 20
    hosts: str = ""
    origins: str = ""

    @classmethod
    def of(cls, environment: Mapping[str, str], *, keys: bool, burst: int) -> AccessPolicy:
        """Read which clients may send requests, and how often."""
        names = ("RATE_LIMIT", "ALLOWED_HOSTS", "ALLOWED_ORIGINS")
        rate, hosts, origins = (environment.get(name, "") for name in names)
        return cls(keys, rate, burst, hosts, origins)

    def values(self) -> dict[str, str]:
        """Return the template's lines.

        Raises:
            ValueError: `rate` is not written as nginx wants it.
        """
        auth = "auth_request /_auth;" if self.keys else ""
        client = "$conch_key" if self.keys else "$binary_remote_addr"
        common = {
            "AUTH": auth,
            "CLIENT": client,
            "HOSTS": "1" if self.keys else _hosts(self.hosts),
            "ORIGINS": _origins(self.origins),
            "CORS": CORS,
        }
        if not self.rate:
            return {**common, "ZONE": "", "LIMIT": "", "RETRY_AFTER": "1"}
        if not (found := RATE.fullmatch(self.rate)):
            raise ValueError(f"RATE_LIMIT={self.rate!r} is not a rate; write it as 10r/s or 600r/m")
        seconds = ceil((1 if found[2] == "s" else 60) / int(found[1]))
        zone = f"limit_req_zone $conch_client zone=clients:10m rate={self.rate};"
        return {
            **common,
            "ZONE": zone,
            "LIMIT": f"limit_req zone=clients burst={self.burst} nodelay;",
            "RETRY_AFTER": str(seconds),
        }


OPEN = AccessPolicy()
AGAIN = "_again"  # upstreams for what is sent once more


def _hosts(allowed: str) -> str:
    """Return nginx's map of $host to 1: without keys, a web page of another site could otherwise reach a
    stack under a name of its own (DNS rebinding).

    Raises:
        ValueError: a name that is none.
    """
    names = [name.strip().lower() for name in allowed.split(",") if name.strip()]
    if "*" in names:
        return "1"
    if wrong := [name for name in names if not HOST.fullmatch(name)]:
        raise ValueError(
            f"ALLOWED_HOSTS has {wrong[0]!r}, which is not a host name; write names separated by commas, or *"
        )
    return ("0;" + "".join(f"\n        {name} 1;" for name in names)).removesuffix(";")


def _origins(allowed: str) -> str:
    """Return the rows of nginx's map from an Origin to the answer's header: the origin itself if it is
    allowed.

    Raises:
        ValueError: an origin that is none.
    """
    names = [name.strip().lower().rstrip("/") for name in allowed.split(",") if name.strip()]
    if "*" in names:
        return "default $http_origin;"
    if wrong := [name for name in names if not ORIGIN.fullmatch(name)]:
        raise ValueError(
            f"ALLOWED_ORIGINS has {wrong[0]!r}, which is not an origin; write https://app.example.org, "
            "several separated by commas, or *"
        )
    return "\n        ".join(['default "";', *(f'"{name}" $http_origin;' for name in names)])


def _upstream(name: str, servers: Iterable[str], *, dynamic: bool) -> str:
    lines = "".join(f"    server {server}{' resolve' if dynamic else ''};\n" for server in servers)
    again = name.endswith(AGAIN)
    # A stream over gRPC cannot be sent again, and what is sent once more is not sent a third time: they never
    # begin on a connection whose other end may be gone. (nginx 1.29.7 and later keep connections by default.)
    fresh = again or name.endswith("_grpc")
    kept = "    keepalive_requests 1;\n" if fresh else "    keepalive 64;\n    keepalive_timeout 4s;\n"
    # What was just lost is idle, and would be the first choice again.
    chosen = "" if again else "    least_conn;\n"
    zone = max(64, 4 * lines.count("\n"))  # k: a server takes about 1, one whose name is resolved twice that
    return f"upstream {name} {{\n    zone {name} {zone}k;\n{chosen}{lines}{kept}}}\n"


def pools(plan: Deployment) -> str:
    """Write pools.conf: one upstream for each pool and instance, and the maps that choose among them."""
    dynamic = bool(plan.resolver)
    parts = [f"resolver {plan.resolver} valid=2s ipv6=off;\nresolver_timeout 2s;\n"] if dynamic else []
    gateways = [f"{gateway} max_fails=0" for gateway in plan.gateways]
    parts += [_upstream(f"gateway{again}", gateways, dynamic=dynamic) for again in ("", AGAIN)]
    for kind in ("http", "grpc"):
        routes = []
        for n, pool in enumerate(plan.pools):
            servers = [f"{getattr(plan.instances[i], kind)} max_fails=0" for i in pool.instances]
            parts += [_upstream(f"pool_{n}_{kind}{again}", servers, dynamic=dynamic) for again in ("", AGAIN)]
            keys = [f"header:{pool.model_id}", f"model:{pool.model_id}", *(["header:"] if n == 0 else [])]
            routes += [f'    "{key}" pool_{n}_{kind};\n' for key in keys]
        for instance in plan.instances:
            parts.append(
                _upstream(f"instance_{instance.index}_{kind}", [getattr(instance, kind)], dynamic=dynamic)
            )
            routes.append(f'    "instance:{instance.index}" instance_{instance.index}_{kind};\n')
        parts.append(f'map $triton_route $triton_{kind} {{\n    default "";\n{"".join(routes)}}}\n')
        own = f"$triton_{kind}"
        rows = "".join(f"    pool_{n}_{kind} pool_{n}_{kind}{AGAIN};\n" for n in range(len(plan.pools)))
        parts.append(f"map {own} {own}{AGAIN} {{\n    default {own};\n{rows}}}\n")
    return "\n".join(parts)


def write_nginx(folder: Path, values: NginxValues, access: AccessPolicy, plan: Deployment) -> Path:
    """Write nginx.conf, what it includes, and pools.conf into `folder`, and return the path of the first.

    Raises:
        ValueError: see `AccessPolicy.values`.
    """
    inner = f'if ($http_x_conch_inner != "{plan.inner_key}") {{ return 403; }}' if plan.inner_key else ""
    names = {"CONCH_INNER": inner} | {
        f"CONCH_{name.upper()}": str(value)
        for name, value in {
            **asdict(values),
            **access.values(),
            **values.instances(len(plan.instances)),
            "METRICS_SERVER": values.metrics.replace("0.0.0.0", "127.0.0.1"),  # noqa: S104
            **(values.tls.values(values.listen) if values.tls else NO_TLS),
        }.items()
    }
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("nginx.conf", "kserve.conf", "access.conf"):
        # safe_substitute leaves nginx's own $variables alone; ours are all upper-case and in braces.
        (folder / name).write_text(
            string.Template((TEMPLATES / f"{name}.template").read_text("utf-8")).safe_substitute(names),
            "utf-8",
        )
    (folder / "pools.conf").write_text(pools(plan), "utf-8")
    return folder / "nginx.conf"
