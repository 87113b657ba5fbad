"""docs/configuration.md and docs/http-api.md: nothing is left out, and what they say is the code's."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from build.catalog import ROOT
from scripts.reference import PAGES, PROCESS_MODE, api, documented

# Of other programs, and of tests.
OTHERS = {"PATH", "TMPDIR", "XDG_RUNTIME_DIR"}
# What compose files and manifests give to one container.
INNER = {"API_KEYS", "GATEWAY_HOST", "INSTANCE_HOST", "RESOLVER"}


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_the_page_is_up_to_date(path: Path) -> None:
    """`python -m scripts.reference` writes it."""
    assert path.read_text("utf-8") == PAGES[path]()


def read_by(path: Path) -> Iterator[str]:
    """Names of environment variables in `get("NAME")`, `number("NAME", …)` and `environ["NAME"]`."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("get", "number", "getenv")):
            first = node.args[:1]
        elif isinstance(node, ast.Subscript) and ast.unparse(node.value).endswith("environ"):
            first = [node.slice]
        else:
            continue
        for one in first:
            if isinstance(one, ast.Constant) and re.fullmatch(r"[A-Z][A-Z0-9_]+", str(one.value)):
                yield str(one.value)


def test_every_variable_of_process_mode() -> None:
    known = {one.name for one in documented() if not isinstance(one, str)} | set(PROCESS_MODE) | OTHERS
    found = {name for path in sorted((ROOT / "ops").glob("*.py")) for name in read_by(path)}
    assert len(found) > 20
    assert {name for name in found - known if not name.startswith("CONCH_")} == INNER


def test_every_field_has_a_description() -> None:
    rows = [line for line in api().splitlines() if line.startswith("| `")]
    assert len(rows) > 100
    assert [row for row in rows if row.endswith("|  |")] == []


def test_every_error_code() -> None:
    page = (ROOT / "docs" / "errors.md").read_text("utf-8")
    sources = [*ROOT.glob("gateway/**/*.py"), *ROOT.glob("retrieval/**/*.py"), *ROOT.glob("docker/nginx/*")]
    text = "".join(path.read_text("utf-8") for path in sources)
    codes = set(re.findall(r'code=\(?"(\w+)"|"code": ?"(\w+)"', text))
    found = {one for pair in codes for one in pair if one}
    assert len(found) > 25
    assert {code for code in found if f"`{code}`" not in page} == set()
