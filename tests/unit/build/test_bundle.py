"""The engine cache: complete or absent, whatever happens."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from filelock import FileLock

from ..conftest import ROOT

pytestmark = pytest.mark.long


TINY = {**os.environ, "CONCH_TARGETS": "tests.fakes.tiny_target"}  # its engine is made in a second


def engines(folder: Path, model_id: str = "mini-gpt2") -> list[str]:
    """The builder's arguments."""
    places = ["--weights", f"{folder}/weights", "--engines", f"{folder}/engines"]
    return ["engines", "--target", "tiny", "--model-id", model_id, *places]


def run(*command: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", *command],
        cwd=ROOT,
        env=TINY | variables,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def started(folder: Path, stdout: int = subprocess.DEVNULL) -> subprocess.Popen[bytes]:
    """A builder in a process group of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "build", *engines(folder)],
        cwd=ROOT,
        env=TINY,
        stdout=stdout,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def complete(bundle: Path) -> bool:
    """All that serving needs is there."""
    files = [
        "manifest.json",
        "parameters.json",
        "engine/tokenizer.json",
        "engine/engine.json",
        "serving/engine/scheduler.py",
        "repository/ensemble/config.pbtxt",
        "repository/tensorrt_llm_stream/1/model.py",
    ]
    return all((bundle / file).is_file() for file in files)


def killed(folder: Path, number: int) -> subprocess.CompletedProcess[str]:
    """A build of the tiny target that ends by SIGKILL just before its change `number`; 0: it runs to its
    end.
    """
    return run("tests.fakes.killed_builder", str(folder), str(number), *engines(folder))


def test_killed_builders_leave_nothing_servable(tmp_path: Path) -> None:
    """SIGKILL before changes from the first to the last, five in all: the bundle is absent, and the next
    build, which finds what is left, succeeds.
    """
    whole = killed(tmp_path / "whole", 0)
    assert whole.returncode == 0, whole.stderr
    last = int(whole.stdout.rpartition("changes: ")[2])
    files = sorted(path.relative_to(tmp_path / "whole") for path in (tmp_path / "whole/engines").rglob("*"))
    bundle = tmp_path / "cut/engines/mini-gpt2/tiny"
    for number in sorted({1 + (last - 1) * n // 4 for n in range(5)}):
        done = killed(tmp_path / "cut", number)
        if done.returncode == 0:  # so little was left to do that it ended before
            shutil.rmtree(bundle)
            done = killed(tmp_path / "cut", min(number, 3))
        assert done.returncode == -signal.SIGKILL, done.stderr
        assert not bundle.exists()
    finished = killed(tmp_path / "cut", 0)
    assert finished.returncode == 0, finished.stderr
    assert (
        sorted(path.relative_to(tmp_path / "cut") for path in (tmp_path / "cut/engines").rglob("*")) == files
    )


def test_two_builders_never_share_a_bundle(tmp_path: Path) -> None:
    """While one holds the lock, the other waits for it, and says so."""
    (tmp_path / "engines/mini-gpt2").mkdir(parents=True)
    with started(tmp_path, stdout=subprocess.PIPE) as waiting:
        with FileLock(tmp_path / "engines/mini-gpt2/tiny.lock"):  # long before the builder asks for it
            assert waiting.stdout
            assert b"another builder is making" in waiting.stdout.readline()
            time.sleep(1)
            assert waiting.poll() is None
            assert not complete(tmp_path / "engines/mini-gpt2/tiny")
        assert waiting.wait(120) == 0
    assert complete(tmp_path / "engines/mini-gpt2/tiny")


def test_a_failing_step_says_what_and_where(tmp_path: Path) -> None:
    """A damaged checkpoint: one sentence with the step, its last words and the log; nothing that could be
    served is left.
    """
    checkpoint = tmp_path / "checkpoint"
    shutil.copytree(ROOT / "miniatures" / "gpt2", checkpoint)
    tokenizer = checkpoint / "tokenizer.json"
    tokenizer.write_bytes(tokenizer.read_bytes()[:1000])
    catalog = tmp_path / "catalog.toml"
    catalog.write_text(f'[broken]\nfamily = "gpt2"\nsource = "file:{checkpoint}"\nlicence = "none"\n')
    done = run("build", *engines(tmp_path, "broken"), CATALOG=str(catalog))
    assert done.returncode == 1
    log = tmp_path / "engines/broken/tiny.log"
    last = done.stderr.strip().rpartition("\n")[2]
    assert last.startswith("conch: broken: step ")
    assert "tests.fakes.tiny_target" in last
    assert "ended with 1: Exception: EOF while parsing" in last
    assert f"(log: {log})" in last
    assert "EOF while parsing" in log.read_text()
    assert not (tmp_path / "engines/broken/tiny").exists()
