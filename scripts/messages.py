"""`python -m scripts.messages`: list every message that users and operators may read."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from build.catalog import ROOT

from .syntax import parsed

ROOMS = ("conch", "build", "serving", "speech", "retrieval", "gateway", "ops", "scripts", "model_repos")
# Two words or more: what is filled in counts as one.
SENTENCE = re.compile(r"(?:\w{2,}|\{[^{}]*\})[,;:]? (?:[\w'’=]+|\{[^{}]*\})")
SQL = re.compile(
    r"(?i)^(select .* from|insert .*into|update \S+ set|delete from|create (table|index)|pragma|begin \w+) "
)
TEMPLATES = ROOT / "docker" / "nginx"


def _text(node: ast.expr) -> str | None:
    """Return a string as written, with replacement fields in braces."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        parts = (
            part.value if isinstance(part, ast.Constant) else "{" + ast.unparse(part.value) + "}"
            for part in node.values
            if isinstance(part, (ast.Constant, ast.FormattedValue))
        )
        return "".join(map(str, parts))
    return None


def _sentences(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield strings with several words, except docstrings."""
    documented = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    inside = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in ast.walk(tree):
        if not isinstance(node, ast.expr) or id(node) in documented | inside:
            continue
        text = _text(node) or ""
        if "\n" not in text and SENTENCE.search(text) and not SQL.search(text):
            yield node.lineno, text


def messages() -> Iterator[str]:
    """Yield `file:line: message`."""
    for room in ROOMS:
        for path in sorted((ROOT / room).rglob("*.py")):
            for line, text in sorted(_sentences(parsed(path))):
                yield f"{path.relative_to(ROOT)}:{line}: {text}"
    for path in sorted(TEMPLATES.glob("*.template")):
        for number, row in enumerate(path.read_text("utf-8").splitlines(), 1):
            if found := re.search(r"(return \d+ '|grpc-message \")(.*?)['\"](?: always)?;", row):
                yield f"{path.relative_to(ROOT)}:{number}: {found[2]}"


def main() -> None:
    """Print the messages."""
    for message in messages():
        print(message)


if __name__ == "__main__":
    main()
