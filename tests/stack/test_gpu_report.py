"""`make gpu-report` as far as it can run without a GPU: in processes, with stand-ins of the image and its
backend.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from pathlib import Path

import pytest

from scripts.gpu_client import DeploymentClient
from scripts.gpu_report import ROUNDS, differences
from tests.ports import first_port

from .conftest import Stack, run
from .gpus import BACKEND, add_packages, gpu_machine

PORT = first_port("gpu-report")
SOME = {"mini-whisper"}  # deployments of the other families have tests of their own


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What one command leaves."""
    home = tmp_path_factory.mktemp("report")
    variables = gpu_machine(home, "", "{model}", PORT, GPU_REPORT_SECONDS="0.3")
    for name in [name for name in variables if re.fullmatch(r"TRITON_\d_GPUS", name)]:
        del variables[name]
    add_packages(variables)
    shutil.copytree(BACKEND, Path(variables["CONCH_HOME"]) / "backends" / "tensorrtllm")
    options = ["--processes", "--targets", "trtllm", "--models", *SOME, "--output", home / "gpu-report.md"]
    done = run(sys.executable, "-m", "scripts.gpu_report", *options, env=variables, seconds=580)
    if artifacts := os.environ.get("CONCH_TEST_LOGS"):
        shutil.copy(home / "gpu-report.md", artifacts)
    assert done.returncode == 0, done.stdout + done.stderr + (home / "gpu-report.md").read_text()
    return (home / "gpu-report.md").read_text("utf-8")


def test_every_step_has_a_row(report: str) -> None:
    """Built, compared, measured, killed and stopped; what this image has not is named as not done."""
    states = dict(re.findall(r"^\| (.+?) \| (ok|FAILED|not done) \|", report, re.M))
    assert [name for name, state in states.items() if state == "FAILED"] == []
    assert {name for name, state in states.items() if state == "not done"} == {
        name for name in states if name.startswith("NVIDIA's")
    }
    for served in ROUNDS:
        if served.target != "trtllm" or not SOME & set(served.models):
            continue
        title = served.target + (" on 2 GPUs" if served.ranks > 1 else "")
        for model in served.models:
            assert {f"{title}, {model}: {step}" for step in ("build", "answers", "speed")} <= set(states)
    assert "is not in this image" in report
    assert "NVIDIA H100" in report


def test_it_says_what_was_compared_measured_and_lost(report: str) -> None:
    assert "4 of 4 as the portable engine" in report
    assert re.search(r"16 at once: \d+\.\d requests/s, \d+ × real time, p50 \d+ ms", report)
    assert len(re.findall(r"back after \d+\.\d s; \d+ requests answered meanwhile, 0 failed", report)) == 1


def test_what_is_expected_is_what_the_portable_engine_says(text_stack: Stack) -> None:
    """miniatures/expected.json is not made by hand."""
    server = DeploymentClient(text_stack.url, text_stack.kserve)
    for model in ("mini-whisper", "mini-t5", "mini-bart", "mini-gpt2"):
        assert [*differences(server, model)] == []
