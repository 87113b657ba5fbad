"""The commands for people, against a running stack, as people call them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from .clients import RECORDINGS
from .conftest import ROOT, Stack, run

Rows = dict[str, dict[str, Any]]


def command(name: str, *options: str | Path, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """Run a command with the tests' own environment: its shell half would make another one."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    return run(sys.executable, "-P", "-m", f"scripts.clients.{name}", *options, env=environment, cwd=cwd)


def ways(stack: Stack) -> dict[str, list[str]]:
    return {
        "gateway": ["--url", stack.url],
        "gateway, streamed": ["--url", stack.url, "--stream"],
        "Triton": ["--triton", stack.grpc],
        "Triton, streamed": ["--triton", stack.grpc, "--stream"],
    }


@pytest.mark.parametrize(("way", "name"), [("gateway, streamed", "cocina.mp3"), ("Triton", "demo.flac")])
def test_transcribe(stack: Stack, recordings: Rows, way: str, name: str) -> None:
    """A bundled recording, named as seen from its folder, becomes its reference text."""
    done = command("transcribe", name, *ways(stack)[way], cwd=RECORDINGS)
    assert (done.stdout, done.stderr, done.returncode) == (recordings[name]["text"] + "\n", "", 0)


@pytest.mark.parametrize("way", ["gateway", "Triton, streamed"])
def test_dataset(stack: Stack, recordings: Rows, tmp_path: Path, way: str) -> None:
    """A folder of recordings with texts next to them: hardly a word is wrong, and the report says so in four
    files.
    """
    short = [row for row in recordings.values() if row["seconds"] <= 30]
    for row in short:
        (tmp_path / row["name"]).write_bytes((RECORDINGS / row["name"]).read_bytes())
        (tmp_path / row["name"]).with_suffix(".txt").write_text(row["text"], "utf-8")
    options = ["--num-tasks", "4", "--compute-cer", "--report", tmp_path / "report"]
    done = command("dataset", tmp_path, *ways(stack)[way], *options)
    assert done.returncode == 0, done.stderr
    report = json.loads((tmp_path / "report" / "report.json").read_text("utf-8"))
    figures = report["figures"]
    assert (figures["answered"], figures["failed"]) == (len(short), 0)
    assert figures["wer"] < 0.02
    assert figures["cer"] < 0.02
    assert figures["audio"] == pytest.approx(sum(row["seconds"] for row in short), rel=0.01)
    assert figures["latency"]["50"] <= figures["latency"]["99"]
    assert ("first words" in done.stdout) == way.endswith("streamed")
    assert {path.name for path in (tmp_path / "report").iterdir()} == {
        "report.json",
        "errors.txt",
        "report.html",
        "report.png",
    }


def test_dataset_as_nvidias_client_is_asked(stack: Stack, recordings: Rows, tmp_path: Path) -> None:
    """`--text-prompt` goes to Triton as it stands, so that a wrong token is Triton's own error; `--log-dir`
    is where the report goes.
    """
    row = {"path": str(RECORDINGS / "order.wav"), "text": recordings["order.wav"]["text"]}
    (tmp_path / "manifest.jsonl").write_text(json.dumps(row), "utf-8")
    for language, status in (("en", 0), ("xx", 1)):
        prompt = f"<|startoftranscript|><|{language}|><|transcribe|><|notimestamps|>"
        asked = ["--text-prompt", prompt, "--log-dir", tmp_path / language]
        done = command("dataset", tmp_path / "manifest.jsonl", *ways(stack)["Triton"], *asked)
        assert done.returncode == status, done.stderr
        assert ("<|xx|>" in done.stderr) == bool(status)
    report = json.loads((tmp_path / "en" / "report.json").read_text("utf-8"))
    assert report["figures"]["wer"] == 0
    done = command("dataset", tmp_path / "manifest.jsonl", *ways(stack)["gateway"], "--text-prompt", "x")
    assert (done.returncode, "needs --triton" in done.stderr) == (2, True)
