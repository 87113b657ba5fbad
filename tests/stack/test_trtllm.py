"""The way of a GPU, on a CPU: weights from a hub, TensorRT-LLM's tools and backend as stand-ins, everything else as it is.

Nothing here says that TensorRT-LLM runs; it says that Conch asks it for what its contract allows, and serves what comes of it.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from build.bundle import read_manifest
from tests.contract.image import environment, make_image
from tests.hub import serving

from .conftest import PYTHON, ROOT, Stack, _wait

PORT = 9280
MODEL = "distil-large-v3"  # on the hub of this test it is the miniature; its layout has a converter of its own
BACKEND = ROOT / "tests/contract/backend/model.py"
GRAPHS = ROOT / "engines/mini-whisper/openvino/engine"


def run(*command: object, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(part) for part in command], cwd=ROOT, env=env, capture_output=True, text=True, check=False, timeout=200)


@pytest.fixture(scope="module")
def gpu_environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """An image, a hub, folders; no weights yet."""
    home = tmp_path_factory.mktemp("trtllm")
    files = {path.name: path.read_bytes() for path in (ROOT / "miniatures/whisper").iterdir()}
    with serving({"distil-whisper/distil-large-v3": files}) as hub:
        yield {
            **os.environ, **environment(make_image(home / "image")), "HF_ENDPOINT": hub.url, "MODEL_ID": MODEL, "TARGET": "trtllm",
            "WEIGHTS_DIR": f"{home}/weights", "ENGINES_DIR": f"{home}/engines", "CONCH_HOME": f"{home}/home", "CONTRACT_GRAPHS": str(GRAPHS),
            "PORT": str(PORT), "INSTANCES": "2", "TRITON_0_GPUS": "0,1", "TRITON_1_GPUS": "2,3",
        }  # fmt: skip


@pytest.fixture(scope="module")
def built(gpu_environment: dict[str, str]) -> dict[str, str]:
    """After `make engines`."""
    done = run(sys.executable, "-m", "build", "engines", env=gpu_environment)
    assert done.returncode == 0, done.stderr
    return gpu_environment


@pytest.fixture(scope="module")
def gpu_stack(built: dict[str, str]) -> Iterator[Stack]:
    """Two instances, each with a pair of GPUs, behind nginx."""
    home = Path(built["CONCH_HOME"])
    (home / "backends" / "tensorrtllm").mkdir(parents=True)
    shutil.copy(BACKEND, home / "backends" / "tensorrtllm" / "model.py")
    with (home / "serve.log").open("wb") as log:
        process = subprocess.Popen([PYTHON, "-m", "scripts.local", "serve"], cwd=ROOT, env=built, stdout=log, stderr=log)
    try:
        _wait(f"http://127.0.0.1:{PORT}/health/ready", process, home)
        yield Stack(f"http://127.0.0.1:{PORT}", f"http://127.0.0.1:{PORT - 80}", f"127.0.0.1:{PORT - 79}", home)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(120)


def test_an_answer_through_nginx(gpu_stack: Stack, recordings: dict[str, dict[str, Any]]) -> None:
    """The miniature's words, by way of the hub, two converters, trtllm-build, the image's template and the backend's tensors."""
    with (ROOT / "miniatures/recordings/demo.flac").open("rb") as file:
        answer = httpx.post(f"{gpu_stack.url}/v1/audio/transcriptions", files={"file": file}, data={"model": MODEL}, timeout=120)
    assert answer.status_code == 200, answer.text
    assert answer.json()["text"] == recordings["demo.flac"]["text"]


def test_each_instance_sees_its_own_gpus(gpu_stack: Stack) -> None:
    """What the backend's process itself says."""
    for i, gpus in enumerate(("0,1", "2,3")):
        assert re.search(rf"contract backend: rank 0 of 1, CUDA_VISIBLE_DEVICES={gpus}$", gpu_stack.log(f"triton-{i}"), re.M)


def test_both_instances_answer(gpu_stack: Stack) -> None:
    """Each by its own path."""
    for i in (0, 1):
        assert httpx.get(f"{gpu_stack.kserve}/instances/{i}/v2/models/whisper_bls/ready", timeout=30).status_code == 200


def test_real_serving_refuses_the_stand_ins_bundle(built: dict[str, str]) -> None:
    """A bundle made by stand-ins says so, and an image that is none of them does not serve it; the remedy is named."""
    image = Path(built["CONCH_IMAGE_ROOT"])
    (image / "etc/conch-toolchain").rename(image / "etc/hidden")
    try:
        refused = run(PYTHON, "-m", "scripts.local", "serve", env={**built, "PORT": str(PORT + 100), "CONCH_HOME": built["CONCH_HOME"] + "2"})
    finally:
        (image / "etc/hidden").rename(image / "etc/conch-toolchain")
    assert refused.returncode == 1
    assert "made by the toolchain contract, this server has tensorrt_llm" in refused.stderr
    assert f"make engines MODEL_ID={MODEL} TARGET=trtllm" in refused.stderr
    manifest = read_manifest(Path(built["ENGINES_DIR"]) / MODEL / "trtllm")
    assert manifest
    assert manifest["engine"]["toolchain"] == "contract"
