"""nginx's configuration from the template and the plan."""

from __future__ import annotations

import string
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

from build.plan import Plan

TEMPLATES = Path(__file__).parent.parent / "docker" / "nginx"


def _upstream(name: str, servers: Iterable[str]) -> str:
    lines = "".join(f"    server {server};\n" for server in servers)
    return f"upstream {name} {{\n    least_conn;\n{lines}    keepalive 64;\n}}\n"


def _server(host: str, port: int, *, down: bool) -> str:
    return f"{host}:{port} " + ("down" if down else "max_fails=1 fail_timeout=3s")


def pools(plan: Plan, gateway: str, down: Collection[int] = ()) -> str:
    """pools.conf: one upstream for each pool and instance, and the maps that choose among them; instances in `down` get nothing."""
    parts, routes = [_upstream("gateway", [gateway])], {"http": list[str](), "grpc": list[str]()}
    for kind, lines in routes.items():
        for n, (model, members) in enumerate(plan.pools.items()):
            servers = [_server(plan.instances[i].host, getattr(plan.instances[i], kind), down=i in down) for i in members]
            parts.append(_upstream(f"pool_{n}_{kind}", servers))
            keys = [f"header:{model}", f"model:{model}", *(["header:"] if n == 0 else [])]
            lines += [f'    "{key}" pool_{n}_{kind};\n' for key in keys]
        for instance in plan.instances:
            parts.append(_upstream(f"instance_{instance.index}_{kind}", [f"{instance.host}:{getattr(instance, kind)}"]))
            lines.append(f'    "instance:{instance.index}" instance_{instance.index}_{kind};\n')
        parts.append(f'map $triton_route $triton_{kind} {{\n    default "";\n{"".join(routes[kind])}}}\n')
    return "\n".join(parts)


def write_nginx(folder: Path, values: Mapping[str, str], pools_conf: str) -> Path:
    """Write nginx.conf, kserve.conf and pools.conf into `folder`; the path of the first."""
    folder.mkdir(parents=True, exist_ok=True)
    text = (TEMPLATES / "nginx.conf.template").read_text("utf-8")
    # safe_substitute leaves nginx's own $variables alone; ours are all upper-case and in braces.
    main = folder / "nginx.conf"
    main.write_text(string.Template(text).safe_substitute(values), "utf-8")
    (folder / "kserve.conf").write_text((TEMPLATES / "kserve.conf").read_text("utf-8"), "utf-8")
    write_pools(folder, pools_conf)
    return main


def write_pools(folder: Path, text: str) -> None:
    """Replace pools.conf in one move, so that a reload never sees half of it."""
    partial = folder / "pools.partial"
    partial.write_text(text, "utf-8")
    partial.replace(folder / "pools.conf")
