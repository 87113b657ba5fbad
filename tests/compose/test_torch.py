"""TARGET=torch in containers, on a stand-in of NVIDIA's image: the image builds, the builder makes a bundle,
and without a GPU the engine answers on torch's CPU device.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from build.catalog import ROOT
from scripts import gpu_report
from scripts.gpu_machine import InDocker, Round
from tests.stack.conftest import Stack
from tests.stack.test_text import questions

from .conftest import compose, gpu_variables, started

TORCH = gpu_variables("torch", COMPOSE_PROFILES="", INSTANCES="1", MODEL_ID="mini-t5")


@pytest.fixture(scope="module")
def torch_stack(nvidia_base: str) -> Iterator[Stack]:
    with started(TORCH, nvidia_base) as stack:
        yield stack


def test_torch_answers_in_containers(torch_stack: Stack) -> None:
    """The sentence that the other targets give, from an engine that says it is torch's."""
    pair = questions("mini-t5", 1)[0]
    answer = torch_stack.openai().completions.create(
        model="mini-t5", prompt=pair.source, max_tokens=100, temperature=0
    )
    assert answer.choices[0].text == pair.target
    ready = httpx.get(f"{torch_stack.url}/health/ready", timeout=60)
    assert ready.json()["models"] == {"mini-t5": True}
    ran = compose("exec", "-T", "triton-0", "sh", "-c", "ls /engines/mini-t5/torch/engine", **TORCH).stdout
    assert "model.safetensors" in ran
    written = "touch /var/cache/conch/here && ! touch /opt/conch/here 2>/dev/null"
    compose("exec", "-T", "triton-0", "sh", "-c", written, **TORCH)


def test_tritons_own_metrics_are_on_the_guards_page(torch_stack: Stack) -> None:
    """Without a GPU: memory and processor; what the guard counts itself stands there once."""
    read = "import urllib.request as r; print(r.urlopen('http://127.0.0.1:8000/metrics').read().decode())"
    page = compose("exec", "-T", "triton-0", "python3", "-c", read, **TORCH).stdout
    assert "conch_triton_serving" in page
    assert "\nnv_pinned_memory_pool_total_bytes " in page
    assert "nv_inference_" not in page


def test_the_base_is_pinned_once() -> None:
    """`TORCH_BASE` in compose, its default in the Dockerfile alone."""
    text = (ROOT / "docker" / "server.Dockerfile").read_text("utf-8")
    assert text.count("ARG TORCH_BASE=") == 1
    assert "TORCH_BASE" not in (ROOT / ".env.example").read_text("utf-8").replace("#TORCH_BASE", "")


def test_the_gpu_report_goes_through_docker(
    torch_stack: Stack, nvidia_base: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A whole round: build, start, answers, speed, and one of two containers' tritonservers killed."""
    monkeypatch.setattr(gpu_report, "SECONDS", 0.3)
    report, given = (
        gpu_report.GpuReport(tmp_path / "report.md"),
        {**os.environ, **TORCH, "TORCH_BASE": nvidia_base, "PORT": str(int(TORCH["PORT"]) + 10)},
    )
    served = Round("torch", ("mini-whisper",), spare=True)
    gpu_report.run_round(lambda one: InDocker(one, given), served, report)
    assert [state for _, state, _ in report.rows] == ["ok"] * 6, report.text()
    assert not compose("ps", "-q", **(TORCH | {"COMPOSE_PROJECT_NAME": "conch-gpu-report"})).stdout
