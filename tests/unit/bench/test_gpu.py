"""The pieces that a machine with a GPU runs."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from bench import gpu as gpu_pieces
from bench.gpu import BENCHES, ROOT, TESTS, main, run


def test_pieces_name_what_is_there() -> None:
    """A test that was renamed would be a piece that cannot pass."""
    for command in (*TESTS.values(), *BENCHES.values()):
        for word in command:
            if word.endswith(".py"):
                assert (ROOT / word).exists(), word
        module = command[command.index("-m") + 1]
        assert find_spec(module), module


def test_a_piece_ends_as_its_command_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or after its time."""
    monkeypatch.setattr(gpu_pieces, "SECONDS", 60)
    found = run("a", [sys.executable, "-c", "print('one'); print('two'); exit(3)"], tmp_path / "a.json")
    assert (found["status"], found["last"]) == (3, "two")
    assert (tmp_path / "a.log").read_text() == "one\ntwo\n"
    monkeypatch.setattr(gpu_pieces, "SECONDS", 0.3)
    assert run("c", ["sleep", "9"], tmp_path / "c.json")["status"] == -1


@pytest.mark.slow
@pytest.mark.parametrize("trap", ["", "trap '' TERM; "])
def test_what_a_piece_started_ends_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trap: str
) -> None:
    """A child that outlives its parent would spoil the next piece; one that ignores SIGTERM is killed."""
    monkeypatch.setattr(gpu_pieces, "SECONDS", 1)
    monkeypatch.setattr(gpu_pieces, "TO_STOP", 1.0)
    found = run("a", ["sh", "-c", f"{trap}sleep 60 & echo $!; wait"], tmp_path / "a.json")
    status = Path(f"/proc/{found['last']}/status")
    assert found["status"] == -1
    assert not status.exists() or "State:\tZ" in status.read_text()


def test_a_piece_that_is_not_there_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["gpu_pieces", "test", "nothing"])
    assert main() == 2
    assert "no piece 'nothing'; there are: kernels, " in capsys.readouterr().err
