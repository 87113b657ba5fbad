"""TARGET=trtllm in containers, on a stand-in of NVIDIA's image with TensorRT-LLM: the images build, the
builder's tools make engines, and two tritonservers with pairs of GPUs serve them.

Nothing here says that TensorRT-LLM runs; see tests/stack/test_trtllm.py.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from build.catalog import ROOT
from tests.stack.conftest import Stack

from .conftest import build_base, compose, gpu_variables, started

TRTLLM = gpu_variables("trtllm", TRITON_0_GPUS="0,1", TRITON_1_GPUS="2,3")


@pytest.fixture(scope="module")
def trtllm_stack(nvidia_base: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """Two servers of `mini-whisper`, on a base with OpenVINO's graphs of it for the backend's arithmetic."""
    graphs = tmp_path_factory.mktemp("graphs") / "engine"
    compose("cp", "triton-0:/engines/mini-whisper/openvino/engine", str(graphs))
    tests = ROOT / "tests"
    contexts = {"graphs": graphs, "fakes": tests / "fakes", "contract": tests / "contract"}
    named = [f"--build-context={name}={folder}" for name, folder in contexts.items()]
    base = build_base(
        "localhost/conch/trtllm-stand-in:test",
        "trtllm_base.Dockerfile",
        *named,
        f"--build-arg=PLAIN={nvidia_base}",
    )
    with started(TRTLLM, base) as stack:
        yield stack


def test_trtllm_answers_in_containers(trtllm_stack: Stack, recordings: dict[str, dict[str, Any]]) -> None:
    """The miniature's words, from engines that the image's tools have made, on either server."""
    sound = (ROOT / "miniatures/recordings/demo.flac").read_bytes()
    for _ in range(4):
        answer = trtllm_stack.transcribe(sound, model="mini-whisper")
        assert answer.status_code == 200, answer.text
        assert answer.json()["text"] == recordings["demo.flac"]["text"]
    for i in range(2):
        models = httpx.get(f"{trtllm_stack.url}/instances/{i}/v2/models/stats").json()["model_stats"]
        counts = {model["name"]: model["inference_stats"]["success"].get("count", 0) for model in models}
        assert counts["whisper_bls"], f"triton-{i} answered nothing"
        devices = compose("exec", "-T", f"triton-{i}", "sh", "-c", "echo $CUDA_VISIBLE_DEVICES", **TRTLLM)
        assert devices.stdout.strip() == TRTLLM[f"TRITON_{i}_GPUS"]


def test_the_builder_tells_what_it_does(trtllm_stack: Stack) -> None:
    """Its log has the target's caution, each step, and what was built; the file next to the engine has the
    tools' own lines, the manifest what they were. A second start builds nothing.
    """

    def read(name: str) -> str:
        return compose("exec", "-T", "triton-0", "cat", f"/engines/mini-whisper/{name}", **TRTLLM).stdout

    log = compose("logs", "--no-log-prefix", "builder", **TRTLLM).stdout
    assert "has never run on a GPU of its authors" in log
    assert re.search(r"step 2 of 2: trtllm-build --checkpoint_dir \S+/decoder$", log, re.MULTILINE), log
    assert re.search(r"mini-whisper +trtllm .* built *$", log, re.MULTILINE), log
    assert "CUDA_VISIBLE_DEVICES=0,1" in read("trtllm.log"), "a line of trtllm-build's"
    assert json.loads(read("trtllm/manifest.json"))["engine"]["toolchain"] == "contract"
    compose("up", "--wait", "--no-build", **TRTLLM)
    again = compose("logs", "--no-log-prefix", "builder", **TRTLLM).stdout
    assert re.search(r"mini-whisper +trtllm .* unchanged *$", again, re.MULTILINE), again
