"""The examples of the documentation, as a reader runs them."""

from __future__ import annotations

from pathlib import Path

from .blocks import Block, those_of
from .conftest import Stack
from .test_retrieval import pdf


@those_of("speech")
def test_speech(stack: Stack, tmp_path: Path, block: Block) -> None:
    """Each prints something, or writes a file."""
    before = set(tmp_path.iterdir())
    out = block.run(stack, tmp_path, {"base": "mini-whisper"})
    written = [path for path in set(tmp_path.iterdir()) - before if path.suffix == ".srt"]
    assert out.strip() or all(path.read_text("utf-8").startswith("1\n") for path in written)


@those_of("retrieval")
def test_retrieval(retrieval_stack: Stack, tmp_path: Path, block: Block) -> None:
    (tmp_path / "manual.pdf").write_bytes(pdf("The lamp is cleaned with a dry cloth."))
    assert "dry cloth" in block.run(retrieval_stack, tmp_path, {})
