"""`python -m scripts.reference`: write docs/configuration.md from .env.example and the gateway's settings,
and docs/http-api.md from its OpenAPI document.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from build.catalog import ROOT
from gateway.app import create_app
from gateway.console.reference import described
from gateway.settings import Address, Settings

CONFIGURATION, API = ROOT / "docs" / "configuration.md", ROOT / "docs" / "http-api.md"
KINDS = (
    (r"true|false", "boolean"),
    (r"\d+[gmk]b?|\d+GB", "size"),
    (r"\d+-\d+", "ports"),
    (r"\d+d", "duration"),
    (r"\d+(\.\d+)?", "number"),
    (r"https?://.*|mongodb://.*", "URL"),
)
NUMBERS = ("_SIZE", "_WIDTH", "_FRACTION", "KV_CACHE", "FACADE_INSTANCES")  # where the default is none
# Of process mode alone: what `make serve` reads and no compose file does.
PROCESS_MODE = {
    "ENGINES_DIR": ("path", "engines", "Folder of the bundles that builds make."),
    "WEIGHTS_DIR": ("path", "weights", "Folder of downloaded weights, with catalog.lock."),
    "AUDIO": ("path", "miniatures/recordings/jfk.flac", "Recording that `make demo` transcribes."),
    "CONCH_HOME": ("path", ".conch/PORT", "Folder of logs, sockets and databases of a running stack."),
}
HEAD = """# Configuration

<!-- python -m scripts.reference -->

In Docker, write variables into `.env` next to `compose.yaml`, or set them in the shell. Without Docker, set
them for `make serve`. Empty means the default. Variables for images, memory and Compose itself have no effect
without Docker.
"""
API_HEAD = """# HTTP API

<!-- python -m scripts.reference -->

Every route of the gateway and its fields. A running stack has the same as a page at `/docs` and as OpenAPI at
`/openapi.json`. With `API_KEYS_FILE`, requests carry `Authorization: Bearer KEY`. Errors have OpenAI's shape:
`{"error": {"message", "type", "param", "code"}}`. KServe v2 on ports 8000 and 8001:
[serve.md](serve.md#addresses).
"""


@dataclass(frozen=True)
class Variable:
    """One variable, as a user sets it."""

    name: str
    kind: str
    default: str
    says: str

    @property
    def row(self) -> str:
        """Return its row of the Markdown table."""
        default = f"`{self.default}`" if self.default else ""
        return f"| `{self.name}` | {self.kind} | {default} | {cell(self.says)} |"


def cell(text: object) -> str:
    """Return text for a table cell, in one line with Markdown's own characters escaped."""
    flat = " ".join(str(text).split()).replace("|", "\\|").replace("<", "&lt;")
    return re.sub(r"\b(?=[A-Z]*_)[A-Z][A-Z0-9_]+(=[\w.:/-]*\w)?", r"`\g<0>`", flat)


def table(rows: Iterable[Variable]) -> str:
    """Return a Markdown table."""
    lines = ["| variable | type | default | meaning |", "|---|---|---|---|", *(one.row for one in rows)]
    return "\n".join(lines) + "\n"


def kind_of(name: str, default: str) -> str:
    """Return the type of a variable of .env.example, from its name and default."""
    if name.endswith("_FILE"):
        return "path"
    if name.endswith("_GPUS"):
        return "numbers"
    if not default and name.endswith(NUMBERS):
        return "number"
    return next((kind for pattern, kind in KINDS if re.fullmatch(pattern, default)), "text")


def documented() -> Iterator[str | Variable]:
    """Return the headings and variables of .env.example in order."""
    comment: list[str] = []
    for line in (ROOT / ".env.example").read_text("utf-8").splitlines():
        if line.startswith("## "):
            yield line.removeprefix("## ")
        elif line.startswith("# "):
            comment.append(line.removeprefix("# "))
            continue
        elif "=" in line:
            name, _, default = line.lstrip("#").partition("=")
            yield Variable(name, kind_of(name, default), default, " ".join(comment))
        comment = []


def _own(name: str, field: FieldInfo) -> Variable:
    kinds = [getattr(one, "__name__", str(one)) for one in get_args(field.annotation) or [field.annotation]]
    default = "" if field.default in (None, PydanticUndefined) else str(field.default)
    names = {"str": "text", "int": "number", "float": "number", "bool": "boolean", "Path": "path"}
    return Variable(f"CONCH_{name.upper()}", names.get(kinds[0], kinds[0]), default, field.description or "")


def configuration() -> str:
    """Return docs/configuration.md."""
    parts, rows = [HEAD], list[Variable]()
    for one in [*documented(), ""]:
        if isinstance(one, Variable):
            rows.append(one)
            continue
        parts += [table(rows)] if rows else []
        parts += [f"## {one}\n"] if one else []
        rows = []
    parts += ["## Without Docker\n", table(Variable(name, *row) for name, row in PROCESS_MODE.items())]
    parts += [
        "## The gateway's own settings\n",
        "Compose, Kubernetes and `make serve` set these for each gateway process.\n",
        table(_own(name, field) for name, field in {**Settings.model_fields, **Address.model_fields}.items()),
    ]
    return "\n".join(parts)


def _fields(fields: Iterable[dict[str, Any]]) -> Iterator[str]:
    yield "| field | type | default | meaning |"
    yield "|---|---|---|---|"
    for one in fields:
        default = one["default"] if one["default"] in ("", "required") else f"`{one['default']}`"
        yield f"| `{one['name']}` | {cell(one['type'])} | {default} | {cell(one['note'])} |"


def api() -> str:
    """Return docs/http-api.md."""
    document = create_app(Settings(deployment=Path("deployment.json"))).openapi()
    parts = [API_HEAD]
    for route in described(document):
        parts.append(f"## {route['method']} {route['path']}\n\n{' '.join(route['summary'].split())}\n")
        if route["fields"]:
            parts.append("\n".join(_fields(route["fields"])) + "\n")
    return "\n".join(parts)


PAGES = {CONFIGURATION: configuration, API: api}


def main() -> None:
    """Write both pages."""
    for path, made in PAGES.items():
        path.write_text(made(), "utf-8")


if __name__ == "__main__":
    main()
