"""Code blocks of the documentation that run: those after `<!-- runs: NAME -->`."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from .conftest import RECORDINGS, ROOT, Stack, run

BLOCK = re.compile(r"^<!-- runs: (\w+) -->\n```(sh|python)\n(.*?)^```", re.MULTILINE | re.DOTALL)
# What blocks call their files, and which of the repository they are given.
FILES = {
    "talk.mp3": "demo.flac",
    "talk.wav": "order.wav",
    "charla.mp3": "cocina.mp3",
    "meeting.mp4": "conversation.flac",
}


@dataclass(frozen=True)
class Block:
    """One block: its page, its line, the kind of stack that it wants, its language and text."""

    page: str
    line: int
    wants: str
    language: str
    code: str

    def run(self, stack: Stack, folder: Path, models: dict[str, str]) -> str:
        """Standard output of the block in `folder`, against `stack` instead of port 8080. `models`: what is
        served in the place of the models that the page names.

        Raises:
            AssertionError: it ends with an error.
        """
        (folder / "miniatures").symlink_to(ROOT / "miniatures")
        for name, recording in FILES.items():
            shutil.copy(RECORDINGS / recording, folder / name)
        code = self.code.replace("http://127.0.0.1:8080", stack.url)
        for name, served in models.items():
            code = re.sub(rf'(model=|"model": "|model=")({re.escape(name)})\b', rf"\g<1>{served}", code)
        shell = ["bash", "-euo", "pipefail"] if self.language == "sh" else [sys.executable]
        done = run(*shell, "-c", code, cwd=folder)
        assert done.returncode == 0, done.stderr
        assert '"error"' not in done.stdout, done.stdout
        return done.stdout


def blocks() -> Iterator[Block]:
    """Those of all pages."""
    for path in sorted(ROOT.glob("docs/**/*.md")):
        text = path.read_text("utf-8")
        for found in BLOCK.finditer(text):
            line = text.count("\n", 0, found.start()) + 1
            yield Block(str(path.relative_to(ROOT / "docs")), line, *found.groups())


def those_of(wants: str) -> pytest.MarkDecorator:
    """Parametrize a test by the blocks of one kind of stack."""
    found = [one for one in blocks() if one.wants == wants]
    assert found, wants
    return pytest.mark.parametrize("block", found, ids=lambda one: f"{one.page}:{one.line}")
