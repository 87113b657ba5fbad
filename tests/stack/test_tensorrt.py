"""Encoders the way of a GPU, on a CPU: weights from a hub, ONNX graphs, a stand-in of trtexec, a repository
for TensorRT's Triton backend, a stand-in of that, and everything else as it is.

Nothing here says that TensorRT runs; it says that Conch asks it for what its contract allows, and serves what
comes of it.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch
import tritonclient.http as kserve
from openai import OpenAI
from transformers import BertModel

from build.plan import read_manifest
from build.targets.tensorrt.plans import Plans
from miniatures.training.pictures.evaluate import PicturePeer
from miniatures.training.pictures.museum import Exhibit, museum, recall
from tests.fakes.hub import serving
from tests.fakes.nvidia_image import environment, make_plain_image
from tests.fakes.pictures import part, saved
from tests.ports import first_port
from tests.unit.serving.test_embedding import checkpoint

from .clients import infer, tensors
from .conftest import PYTHON, ROOT, Stack, build_engines, run, started

PORT = first_port("tensorrt")
CLIP, MINILM = "clip-vit-base-patch32", "all-minilm-l6-v2"  # on the hub of this test they are small
CLOSE = 0.999  # float16 compared with transformers' float32


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the hub has as all-MiniLM-L6-v2: a random BERT that reads 12 tokens."""
    return checkpoint(tmp_path_factory.mktemp("bert"))


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory, bert: Path) -> dict[str, str]:
    """After `make engines TARGET=trtllm`, which hands both models to the target next to it."""
    home = tmp_path_factory.mktemp("plans")
    variables = {
        **os.environ,
        **environment(make_plain_image(home / "image")),
        "MODEL_ID": f"{CLIP},{MINILM}",
        "TARGET": "trtllm",
        "WEIGHTS_DIR": f"{home}/weights",
        "ENGINES_DIR": f"{home}/engines",
        "CONCH_HOME": f"{home}/home",
        "PORT": str(PORT),
        "INSTANCES": "2",
    }
    clip = {path.name: path.read_bytes() for path in (ROOT / "miniatures/clip").iterdir()}
    texts = {str(path.relative_to(bert)): path.read_bytes() for path in bert.rglob("*") if path.is_file()}
    names = {"openai/clip-vit-base-patch32": clip, "sentence-transformers/all-MiniLM-L6-v2": texts}
    with serving(names) as hub:
        build_engines({**variables, "HF_ENDPOINT": hub.url})
    return variables


@pytest.fixture(scope="module")
def stack(built: dict[str, str]) -> Iterator[Stack]:
    """An instance each, behind nginx; their tritonservers have the stand-in backend."""
    backend = ROOT / "tests/fakes/tensorrt_backend"
    shutil.copytree(backend, Path(built["CONCH_HOME"]) / "backends" / "tensorrt")
    with started(built) as found:
        yield found


@pytest.fixture(scope="module")
def peer() -> PicturePeer:
    """Transformers' CLIP on the same weights."""
    return PicturePeer(ROOT / "miniatures" / "clip")


@pytest.fixture(scope="module")
def exhibits() -> list[Exhibit]:
    return museum()[:64]


def embedded(client: OpenAI, given: Any, model: str = CLIP) -> np.ndarray:
    answer = client.embeddings.create(model=model, input=given)
    return np.array([row.embedding for row in answer.data], np.float32)


@pytest.mark.parametrize("count", [1, 3, 64])
def test_pictures_and_captions(
    client: OpenAI, exhibits: list[Exhibit], peer: PicturePeer, count: int
) -> None:
    """Both plans of CLIP, by way of /v1/embeddings, one, some and as many as a plan takes at once."""
    few = exhibits[:count]
    pictures = embedded(client, [part(saved(one.picture, "PNG")) for one in few])
    texts = embedded(client, [one.caption for one in few])
    assert (pictures * peer.pictures([one.picture for one in few])).sum(1).min() >= CLOSE
    assert (texts * peer.texts([one.caption for one in few])).sum(1).min() >= CLOSE
    assert count < 64 or min(recall(pictures, texts)) >= 0.9


def mean(bert: Path, ids: list[list[int]]) -> np.ndarray:
    """sentence-transformers' mean of all tokens and length 1, by transformers, a text at a time."""
    model = BertModel.from_pretrained(bert, add_pooling_layer=False).eval()
    with torch.no_grad():
        rows = [model(torch.tensor([row])).last_hidden_state[0].mean(0) for row in ids]
    return np.stack([(row / row.norm()).numpy() for row in rows])


@pytest.mark.parametrize("count", [1, 3, 64])
def test_texts(client: OpenAI, bert: Path, count: int) -> None:
    """MiniLM's plan: texts of different length in one request, each compared with transformers alone."""
    draw = np.random.default_rng(count)
    words = [[int(draw.integers(4, 14)) for _ in range(int(draw.integers(1, 11)))] for _ in range(count)]
    texts = [" ".join("abcdefghij"[word - 4] for word in row) for row in words]
    found = embedded(client, texts, MINILM)
    assert (found * mean(bert, [[1, *row, 2] for row in words])).sum(1).min() >= CLOSE


def test_requests_that_wait_are_computed_together(client: OpenAI, stack: Stack) -> None:
    """Triton's dynamic batcher joins requests of one shape; each gets its own vector."""
    asked = ["a b c", "d e f", "g h i", "j a d"] * 12
    alone = {text: embedded(client, text, MINILM)[0] for text in set(asked)}
    with ThreadPoolExecutor(12) as threads:
        found = list(threads.map(lambda text: embedded(client, text, MINILM)[0], asked))
    assert min(float(one @ alone[text]) for one, text in zip(found, asked, strict=True)) >= 0.9999
    batches = re.findall(r"minilm_encoder computes (\d+) rows of (\d+) requests", stack.log("triton-1"))
    assert max(int(requests) for _, requests in batches) > 1


def test_raw_encoders(stack: Stack, exhibits: list[Exhibit], peer: PicturePeer) -> None:
    """By Triton's own client: pixels and ids as transformers makes them, padding after a mask."""
    few, url = exhibits[:3], stack.kserve.removeprefix("http://")
    pixels = peer.pixels([one.picture for one in few])
    coded = peer.coded([one.caption for one in few])
    asked = {
        "clip_image_encoder": (
            tensors(kserve, pixel_values=pixels.astype(np.float16)),
            peer.pictures([e.picture for e in few]),
        ),
        "clip_text_encoder": (
            tensors(kserve, **{n: coded[n].astype(np.int32) for n in ("input_ids", "attention_mask")}),
            peer.texts([one.caption for one in few]),
        ),
    }
    client = kserve.InferenceServerClient(url)  # the plain paths belong to the first model
    for model, (inputs, expected) in asked.items():
        vectors = client.infer(model, inputs).as_numpy("embedding")
        assert (vectors * expected).sum(1).min() >= CLOSE, model


def test_what_a_plan_does_not_take(stack: Stack) -> None:
    """A picture of another size is Triton's own 400, by the sizes that the configuration says; a text that is
    too long is the façade's, and of the raw encoder the guard's; an id that there is not ends no server.
    """
    clip, minilm = (f"{stack.kserve}/models/{model}" for model in (CLIP, MINILM))
    small = tensors(kserve, pixel_values=np.zeros((1, 3, 8, 8), np.float16))
    with pytest.raises(kserve.InferenceServerException, match="pixel_values"):
        kserve.InferenceServerClient(clip.removeprefix("http://")).infer("clip_image_encoder", small)
    long = httpx.post(f"{stack.url}/v1/embeddings", json={"model": MINILM, "input": "a " * 30})
    assert long.status_code == 400
    assert "reads 12 at most" in long.text
    ones = ("INT32", np.ones((1, 13), np.int32))
    raw = infer(minilm, "minilm_encoder", {"input_ids": ones, "attention_mask": ones})
    assert raw.status_code == 400, raw.text
    assert "input_ids" in raw.text
    mask = ("INT32", np.ones((1, 4), np.int32))
    answers = [
        infer(minilm, "minilm_encoder", {"input_ids": ("INT32", [ids]), "attention_mask": mask})
        for ids in ([1, 2_000_000_000, -5, 2], [1, 13, 0, 2])
    ]
    assert [answer.status_code for answer in answers] == [200, 200]
    assert answers[0].json()["outputs"] == answers[1].json()["outputs"]


def test_each_instance_sees_its_own_gpu(stack: Stack) -> None:
    """What the backend's process itself says."""
    for i in (0, 1):
        assert re.search(
            rf"contract backend: \w+ is ready, CUDA_VISIBLE_DEVICES={i}$", stack.log(f"triton-{i}"), re.M
        )


def test_bundles_say_what_made_them(built: dict[str, str]) -> None:
    """Under the target that made them, with TensorRT's version and the card; a second build does nothing."""
    for model in (CLIP, MINILM):
        bundle = Path(built["ENGINES_DIR"]) / model / "tensorrt"
        manifest = read_manifest(bundle)
        assert manifest
        assert (manifest.engine["toolchain"], manifest.engine["versions"]["tensorrt"]) == (
            "contract",
            "10.11.0.33",
        )
        assert manifest.engine["gpu"] == {"name": "NVIDIA H100 80GB HBM3", "compute_capability": "9.0"}
        assert {plan.inputs[0].most[0] for plan in Plans.load(bundle / "engine").plans} == {64}
    again = run(sys.executable, "-m", "build", "engines", env=built)
    assert again.returncode == 0, again.stderr
    assert again.stdout.count("unchanged") == 2


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda image: (image / "etc/tensorrt").write_text("10.10.0.31\n"), "made with tensorrt 10.11.0.33"),
        (lambda image: (image / "usr/src/tensorrt/bin/trtexec").unlink(), "does not run or does not say its"),
    ],
    ids=["another TensorRT", "no trtexec"],
)
def test_a_server_refuses_what_is_not_its_own(
    built: dict[str, str], tmp_path: Path, change: Any, sentence: str
) -> None:
    """With the remedy, before anything starts. Other cards: tests/unit/build/trtllm/test_bundles.py."""
    image = make_plain_image(tmp_path / "image")
    change(image)
    variables = {**built, **environment(image), "PORT": str(PORT + 100), "CONCH_HOME": str(tmp_path / "home")}
    refused = run(PYTHON, "-m", "ops.process_mode", "serve", env=variables)
    assert refused.returncode == 1
    assert sentence in refused.stderr
    assert "docker compose up -d" in refused.stderr or "run this in Conch's tensorrt image" in refused.stderr
