"""nginx's configuration from the template and the plan."""

from __future__ import annotations

import re
import string
from collections.abc import Collection, Iterable
from dataclasses import asdict, dataclass
from math import ceil
from pathlib import Path

from build.plan import Plan

TEMPLATES = Path(__file__).parent.parent / "docker" / "nginx"
RATE = re.compile(r"([1-9]\d*)r/([sm])")


@dataclass(frozen=True)
class NginxValues:
    """What the template's ${CONCH_…} stand for: folders, the address of the public doors, ports, the largest body as nginx writes it.

    `instance_http`, `instance_grpc`: the first of the ports at which each instance is found by host and port alone; 0: none are opened.
    """

    run: str
    conf: str
    listen: str
    port: int
    kserve: int
    grpc: int
    internal: int
    max_body: str
    user: str = ""
    instance_http: int = 0
    instance_grpc: int = 0

    def instances(self, count: int) -> dict[str, str]:
        """The template's lines for the instances' own ports."""
        firsts = {"KSERVE_PORTS": self.instance_http, "GRPC_PORTS": self.instance_grpc}
        if not all(firsts.values()):
            return {**dict.fromkeys(firsts, ""), "PORT_ROUTES": ""}
        kinds = {"KSERVE_PORTS": "", "GRPC_PORTS": " http2"}
        listens = {name: " ".join(f"listen {self.listen}:{first + i}{kinds[name]};" for i in range(count)) for name, first in firsts.items()}
        routes = " ".join(f'{first + i} "instance:{i}";' for first in firsts.values() for i in range(count))
        return {**listens, "PORT_ROUTES": routes}


@dataclass(frozen=True)
class Gate:
    """Who may come in, and how often: whether keys are asked for, requests as nginx writes them ("10r/s", "600r/m", empty for no limit)."""

    keys: bool = False
    rate: str = ""
    burst: int = 20

    def values(self) -> dict[str, str]:
        """The template's lines.

        Raises:
            ValueError: `rate` is not written as nginx wants it.
        """
        auth = "auth_request /conch-auth;" if self.keys else ""
        client = "$http_authorization" if self.keys else "$binary_remote_addr"
        if not self.rate:
            return {"AUTH": auth, "CLIENT": client, "ZONE": "", "LIMIT": "", "RETRY_AFTER": "1"}
        if not (found := RATE.fullmatch(self.rate)):
            raise ValueError(f"RATE_LIMIT={self.rate!r} is not understood; write it as 10r/s or 600r/m")
        seconds = ceil((1 if found[2] == "s" else 60) / int(found[1]))
        zone = f"limit_req_zone $conch_client zone=clients:10m rate={self.rate};"
        return {"AUTH": auth, "CLIENT": client, "ZONE": zone, "LIMIT": f"limit_req zone=clients burst={self.burst} nodelay;", "RETRY_AFTER": str(seconds)}


OPEN = Gate()


def _upstream(name: str, servers: Iterable[str], *, dynamic: bool) -> str:
    lines = "".join(f"    server {server}{' resolve' if dynamic else ''};\n" for server in servers)
    zone = f"    zone {name} 64k;\n" if dynamic else ""
    # An idle connection holds up a stopping tritonserver for its whole exit timeout (seen on 24.10): none is kept for long.
    return f"upstream {name} {{\n{zone}    least_conn;\n{lines}    keepalive 64;\n    keepalive_timeout 4s;\n}}\n"


def _server(host: str, port: int, *, down: bool) -> str:
    return f"{host}:{port} " + ("down" if down else "max_fails=1 fail_timeout=3s")


def pools(plan: Plan, down: Collection[int] = ()) -> str:
    """pools.conf: one upstream for each pool and instance, and the maps that choose among them; instances in `down` get nothing."""
    dynamic = bool(plan.resolver)
    parts = [f"resolver {plan.resolver} valid=2s ipv6=off;\nresolver_timeout 2s;\n"] if dynamic else []
    parts.append(_upstream("gateway", [plan.gateway], dynamic=dynamic))
    for kind in ("http", "grpc"):
        routes = []
        for n, (model, members) in enumerate(plan.pools.items()):
            servers = [_server(plan.instances[i].host, getattr(plan.instances[i], kind), down=i in down) for i in members]
            parts.append(_upstream(f"pool_{n}_{kind}", servers, dynamic=dynamic))
            keys = [f"header:{model}", f"model:{model}", *(["header:"] if n == 0 else [])]
            routes += [f'    "{key}" pool_{n}_{kind};\n' for key in keys]
        for instance in plan.instances:
            parts.append(_upstream(f"instance_{instance.index}_{kind}", [f"{instance.host}:{getattr(instance, kind)}"], dynamic=dynamic))
            routes.append(f'    "instance:{instance.index}" instance_{instance.index}_{kind};\n')
        parts.append(f'map $triton_route $triton_{kind} {{\n    default "";\n{"".join(routes)}}}\n')
    return "\n".join(parts)


def write_nginx(folder: Path, values: NginxValues, gate: Gate, plan: Plan) -> Path:
    """Write nginx.conf, what it includes, and pools.conf into `folder`; the path of the first.

    Raises:
        ValueError: see `Gate.values`.
    """
    names = {f"CONCH_{name.upper()}": str(value) for name, value in {**asdict(values), **gate.values(), **values.instances(len(plan.instances))}.items()}
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("nginx.conf", "kserve.conf", "gate.conf"):
        # safe_substitute leaves nginx's own $variables alone; ours are all upper-case and in braces.
        (folder / name).write_text(string.Template((TEMPLATES / f"{name}.template").read_text("utf-8")).safe_substitute(names), "utf-8")
    write_pools(folder, pools(plan))
    return folder / "nginx.conf"


def write_pools(folder: Path, text: str) -> None:
    """Replace pools.conf in one move, so that a reload never sees half of it."""
    partial = folder / "pools.partial"
    partial.write_text(text, "utf-8")
    partial.replace(folder / "pools.conf")
