"""Syntax trees of the repository's files."""

from __future__ import annotations

import ast
from pathlib import Path


def parsed(path: Path) -> ast.Module:
    """Parse a Python file."""
    text = path.read_text("utf-8")
    try:
        return ast.parse(text)
    # CPython 3.11 counts wrong where garbage is collected meanwhile: python/cpython#106905
    except SystemError:
        return ast.parse(text)
