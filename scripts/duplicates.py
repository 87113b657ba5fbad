"""Find equal blocks of code in two places."""

from __future__ import annotations

import ast
import tokenize
from io import BytesIO
from itertools import combinations
from pathlib import Path

from .syntax import parsed

BLOCK = 6  # lines of code, without comments and docstrings, that stand twice
SKIPPED = (
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
)


def _code(path: Path) -> list[tuple[int, str]]:
    """Return line number and text of each line of code, without comments, docstrings and imports."""
    skipped = {
        line
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.Import | ast.ImportFrom)
        or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }
    words: dict[int, list[str]] = {}
    for token in tokenize.tokenize(BytesIO(path.read_bytes()).readline):
        if token.type not in SKIPPED and token.string and token.start[0] not in skipped:
            words.setdefault(token.start[0], []).append(token.string)
    return [(line, " ".join(parts)) for line, parts in sorted(words.items())]


def duplicates(root: Path, paths: list[Path]) -> list[tuple[str, str, int]]:
    """Return blocks of at least `BLOCK` equal lines of code in two places: both places, and the number of
    lines.
    """
    texts = [_code(path) for path in paths]
    places: dict[tuple[str, ...], list[tuple[int, int]]] = {}
    for number, text in enumerate(texts):
        for start in range(len(text) - BLOCK + 1):
            window = tuple(words for _, words in text[start : start + BLOCK])
            places.setdefault(window, []).append((number, start))
    runs: dict[tuple[int, int, int], list[int]] = {}  # file, other file, shift: where windows agree
    for twice in places.values():
        for (left, first), (right, second) in combinations(twice, 2):
            if left != right or second - first >= BLOCK:
                runs.setdefault((left, right, second - first), []).append(first)

    def name(number: int, start: int) -> str:
        return f"{paths[number].relative_to(root)}:{texts[number][start][0]}"

    return [
        (name(left, min(firsts)), name(right, min(firsts) + shift), len(firsts) + BLOCK - 1)
        for (left, right, shift), firsts in sorted(runs.items())
    ]
