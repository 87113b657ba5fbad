"""Pictures and texts in one space: mini-clip, asked by OpenAI's SDK, as files of a form and by Triton's own
client, compared with transformers on the same weights.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import tritonclient.http as kserve
from openai import OpenAI

from miniatures.training.pictures.evaluate import PicturePeer
from miniatures.training.pictures.museum import Exhibit, museum, recall
from serving.engine.openvino.runtime import hardware_precision, this_cpu
from tests.ports import first_port

from ..fakes.pictures import part, saved
from .clients import tensors
from .conftest import ROOT, Stack, portable, started

PORT = first_port("clip-torch")
MODEL = "mini-clip"
CLOSE = 0.9999 if hardware_precision(this_cpu(), many_rows=True) == "f32" else 0.999


@pytest.fixture(scope="module")
def stack(retrieval_stack: Stack) -> Stack:
    """Its second model."""
    return retrieval_stack


@pytest.fixture(scope="module")
def exhibits() -> list[Exhibit]:
    return museum(200)


@pytest.fixture(scope="module")
def peer() -> PicturePeer:
    """Transformers' model, processor and tokenizer on the weights of this repository."""
    return PicturePeer(ROOT / "miniatures" / "clip")


def embedded(client: OpenAI, given: Any, **fields: Any) -> np.ndarray:
    answer = client.embeddings.create(model=MODEL, input=given, **fields)
    assert [row.index for row in answer.data] == list(range(len(answer.data)))
    return np.array([row.embedding for row in answer.data], np.float32)


def post(stack: Stack, given: Any, **fields: Any) -> httpx.Response:
    body = {"model": MODEL, "input": given, **fields}
    return httpx.post(f"{stack.url}/v1/embeddings", json=body, timeout=120)


def test_the_museum(client: OpenAI, exhibits: list[Exhibit], peer: PicturePeer) -> None:
    """200 pictures that training never saw find their captions, captions their pictures; both are
    transformers' vectors.
    """
    files = [saved(one.picture, "PNG") for one in exhibits]
    pictures = np.concatenate(
        [embedded(client, [part(data) for data in files[at : at + 100]]) for at in range(0, len(files), 100)]
    )
    captions = [one.caption for one in exhibits]
    texts = embedded(client, captions)
    assert min(recall(pictures, texts)) >= 0.9
    assert (pictures * peer.pictures([one.picture for one in exhibits])).sum(1).min() >= CLOSE
    assert (texts * peer.texts(captions)).sum(1).min() >= CLOSE


def test_texts_and_pictures_together(client: OpenAI, exhibits: list[Exhibit], stack: Stack) -> None:
    """In one request, in order; only text has tokens; a picture of any format is the same picture."""
    few = exhibits[:4]
    mixed: list[Any] = []
    for one in few:
        mixed += [one.caption, part(saved(one.picture, "PNG")), {"type": "text", "text": one.caption}]
    found = embedded(client, mixed)
    np.testing.assert_allclose(found[0::3], embedded(client, [one.caption for one in few]), atol=1e-5)
    np.testing.assert_allclose(found[0::3], found[2::3], atol=1e-5)
    alone = [embedded(client, [part(saved(one.picture, "PNG"))])[0] for one in few]
    np.testing.assert_allclose(found[1::3], alone, atol=1e-4)
    lossless = {"webp": saved(few[0].picture, "WEBP", lossless=True), "bmp": saved(few[0].picture, "BMP")}
    for kind, data in lossless.items():
        np.testing.assert_allclose(embedded(client, [part(data, kind)])[0], alone[0], atol=1e-4)
    usage = post(
        stack, [part(saved(few[0].picture, "PNG")), {"type": "text", "text": "a red circle"}]
    ).json()["usage"]
    assert usage == {"prompt_tokens": 5, "total_tokens": 5}


def test_too_large_a_body(stack: Stack) -> None:
    """By nginx, in OpenAI's form."""
    answer = post(stack, [part(b"\0" * 14_000_000)])
    assert answer.status_code == 413
    assert answer.json()["error"]["code"] == "body_too_large"


def test_pictures_never_mix(client: OpenAI, exhibits: list[Exhibit], peer: PicturePeer) -> None:
    """Eight clients with pictures of their own, computed together: each gets its own vector."""
    own = exhibits[::4]
    expected = peer.pictures([one.picture for one in own])
    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(lambda one: embedded(client, [part(saved(one.picture, "PNG"))])[0], own))
    assert (np.array(found) * expected).sum(1).min() >= CLOSE


def test_all_four_models_answer_kserve_clients(
    stack: Stack, exhibits: list[Exhibit], peer: PicturePeer
) -> None:
    """Façades and raw encoders, by Triton's own client."""
    client = kserve.InferenceServerClient(f"{stack.kserve.removeprefix('http://')}/models/{MODEL}")
    few = exhibits[:3]
    files = [saved(one.picture, "PNG") for one in few]
    pixels = peer.pixels([one.picture for one in few])
    expected = peer.pictures([one.picture for one in few])
    asked = [
        ("clip_image", {"image": np.array([[data] for data in files], object)}),
        ("clip_image_encoder", {"pixel_values": pixels}),
    ]
    for model, given in asked:
        vectors = client.infer(model, tensors(kserve, **given)).as_numpy("embedding")
        assert (vectors * expected).sum(1).min() >= CLOSE, model
    one = np.frombuffer(files[0], np.uint8)[None]
    vector = client.infer("clip_image", tensors(kserve, image_bytes=one)).as_numpy("embedding")
    assert (vector * expected[:1]).sum(1).min() >= CLOSE
    captions = [one.caption for one in few]
    texts = tensors(kserve, text=np.array([[text.encode()] for text in captions], object))
    facade = client.infer("clip_text", texts).as_numpy("embedding")
    coded = peer.coded(captions)
    ids = {name: coded[name].astype(np.int32) for name in ("input_ids", "attention_mask")}
    raw = client.infer("clip_text_encoder", tensors(kserve, **ids)).as_numpy("embedding")
    np.testing.assert_allclose(facade, raw, atol=1e-5)
    assert (raw * peer.texts(captions)).sum(1).min() >= CLOSE
    with pytest.raises(Exception, match="image 0 is not a picture"):
        client.infer("clip_image", tensors(kserve, image=np.array([[b"x"]], object)))
    with pytest.raises(Exception, match="it must be \\[3, 96, 96\\]"):
        client.infer("clip_image_encoder", tensors(kserve, pixel_values=np.zeros((1, 3, 8, 8), np.float32)))


def test_the_torch_engine(tmp_path: Path, exhibits: list[Exhibit], peer: PicturePeer) -> None:
    """One instance of TARGET=torch: the same vectors, pictures and texts in one request."""
    few = exhibits[:40]
    with started(portable(tmp_path, PORT, MODEL, 1, target="torch"), tidy=False) as stack:
        client = stack.openai()
        mixed = [part(saved(one.picture, "PNG")) for one in few] + [one.caption for one in few]
        found = embedded(client, mixed)
    expected = np.concatenate(
        [peer.pictures([one.picture for one in few]), peer.texts([one.caption for one in few])]
    )
    assert (found * expected).sum(1).min() >= 0.999  # float16 where there is a GPU
