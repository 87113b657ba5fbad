"""Pictures and texts in one space: mini-clip, asked by OpenAI's SDK, as files of a form and by Triton's own
client, compared with transformers on the same weights.
"""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import tritonclient.http as kserve
from openai import OpenAI
from PIL import Image

from miniatures.training.pictures.evaluate import PicturePeer
from miniatures.training.pictures.museum import Exhibit, museum, recall
from serving.engine.openvino.runtime import hardware_precision, this_cpu
from tests.ports import first_port

from ..fakes.pictures import broken, noise, png, saved
from .conftest import ROOT, Stack, portable, started

PORT, TORCH_PORT = first_port("clip"), first_port("clip-torch")
MODEL = "mini-clip"
FULL = hardware_precision(this_cpu(), many_rows=True) == "f32"
CLOSE = 0.9999 if FULL else 0.999


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """Two instances, and one of a model that writes."""
    models = f"{MODEL},mini-gpt2"
    build = [sys.executable, "-m", "build", "engines", "--target", "openvino", "--model-id", models]
    subprocess.run(build, cwd=ROOT, check=True)
    with started(portable(tmp_path_factory.mktemp("clip"), PORT, models, 3)) as found:
        yield found


@pytest.fixture(scope="module")
def client(stack: Stack) -> OpenAI:
    return stack.openai()


@pytest.fixture(scope="module")
def exhibits() -> list[Exhibit]:
    return museum(200)


@pytest.fixture(scope="module")
def peer() -> PicturePeer:
    """Transformers' model, processor and tokenizer on the weights of this repository."""
    return PicturePeer(ROOT / "miniatures" / "clip")


def url(data: bytes, kind: str = "png") -> str:
    return f"data:image/{kind};base64,{base64.b64encode(data).decode()}"


def part(data: bytes, kind: str = "png") -> dict[str, Any]:
    """A picture as chat has it."""
    return at(url(data, kind))


def at(address: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": address}}


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


def test_files_of_a_form(stack: Stack, exhibits: list[Exhibit], client: OpenAI) -> None:
    """Pictures as `file` or `input`, texts as `input`, in the order of the form."""
    first, second = (saved(one.picture, "PNG") for one in exhibits[:2])
    form = [
        ("model", (None, MODEL)),
        ("file", ("a.png", first, "image/png")),
        ("input", (None, "a red circle")),
        ("input", ("b", second, "application/octet-stream")),
        ("encoding_format", (None, "float")),
    ]
    answer = httpx.post(f"{stack.url}/v1/embeddings", files=form, timeout=60)
    assert answer.status_code == 200, answer.text
    found = [row["embedding"] for row in answer.json()["data"]]
    expected = embedded(client, [part(first), "a red circle", part(second)])
    np.testing.assert_allclose(found, expected, atol=1e-4)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ([at("http://127.0.0.1/a.png")], "input [0] is a remote URL"),
        (["a", at("HTTPS://host/a.png")], "input [1] is a remote URL"),
        ([at("file:///etc/passwd")], "[0] is not a base64 data URL"),
        ([at("data:image/png,abc")], "[0] is not a base64 data URL"),
        ([at("data:image/png;base64,@@@")], "[0]: its data URL is not valid"),
        ([at("data:;base64,")], "input [0] is empty"),
        ([at("data:;base64,é")], "[0] is not a base64 data URL"),
        ([{"type": "image_url", "image_url": "data:;base64,AAAA"}], "image_url"),
        ([{"type": "image_url"}], "image_url"),
        ([{"type": "input_audio", "input_audio": {}}], "input"),
        ([part(b"hello")], "input [0] is not a picture that can be read; send PNG, JPEG, WebP, GIF or BMP"),
        (["a", part(png(9000, 9000))], "input [1] has more than 67108864 pixels"),
        (["a", "b", part(saved(noise(99, 99), "JPEG")[:900])], "input [2] is a damaged JPEG picture"),
    ],
    ids=range(13),
)  # fmt: skip
def test_refusals(stack: Stack, given: Any, sentence: str) -> None:
    answer = post(stack, given)
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert error["param"] == "input", error
    assert sentence in error["message"]


def test_what_reads_no_pictures_says_so(stack: Stack) -> None:
    body = {"model": "mini-gpt2", "input": [part(saved(noise(9, 9), "PNG"))]}
    answer = httpx.post(f"{stack.url}/v1/embeddings", json=body)
    assert answer.status_code == 400
    assert "does not support embedding" in answer.json()["error"]["message"]


def test_too_large_a_body(stack: Stack) -> None:
    """By nginx, in OpenAI's form."""
    answer = post(stack, [part(b"\0" * 14_000_000)])
    assert answer.status_code == 413
    assert answer.json()["error"]["code"] == "body_too_large"


FORMS = {
    "no boundary": ("multipart/form-data", b"--x\r\n"),
    "cut off": (
        "multipart/form-data; boundary=x",
        b'--x\r\nContent-Disposition: form-data; name="model"\r\n\r\nmini',
    ),
    "no form": ("multipart/form-data; boundary=x", b"hello"),
    "nothing": ("multipart/form-data; boundary=x", b""),
    "mixed": ("multipart/mixed; boundary=x", b"--x--\r\n"),
    "no model": (
        "multipart/form-data; boundary=x",
        b'--x\r\nContent-Disposition: form-data; name="input"\r\n\r\na\r\n--x--\r\n',
    ),
    "no input": (
        "multipart/form-data; boundary=x",
        b'--x\r\nContent-Disposition: form-data; name="model"\r\n\r\nmini-clip\r\n--x--\r\n',
    ),
    "a file elsewhere": (
        "multipart/form-data; boundary=x",
        b'--x\r\nContent-Disposition: form-data; name="model"; filename="a"\r\n\r\nmini-clip\r\n--x--\r\n',
    ),
}


@pytest.mark.parametrize("name", FORMS)
def test_broken_forms(stack: Stack, name: str) -> None:
    kind, content = FORMS[name]
    answer = httpx.post(f"{stack.url}/v1/embeddings", content=content, headers={"content-type": kind})
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["message"]


def test_hostile_pictures(stack: Stack, exhibits: list[Exhibit]) -> None:
    """300 broken files and some traps, eight clients at once: 200 or 400 with the field's name, nothing else;
    and the model answers as before.
    """
    traps = [
        png(8192, 8192), png(2**31 - 1, 1), png(0, 0), png(1, 1, depth=99), b"GIF89a" + b"\xff" * 500,
        b"RIFF\xff\xff\xff\xffWEBPVP8 ", b"<svg><!ENTITY a 'b'></svg>", b"%PDF-1.7", b"PK\x03\x04",
        b"BM" + b"\0" * 60, saved(noise(40, 40), "PNG") + b"<?php",
        saved(Image.new("1", (8000, 8000)), "PNG"), saved(noise(1, 9000), "PNG"),
    ]  # fmt: skip
    before = post(stack, [part(saved(exhibits[0].picture, "PNG"))]).json()["data"]
    with ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(lambda data: post(stack, [part(data)]), [*broken(), *traps]))
    assert len(answers) >= 300
    assert {answer.status_code for answer in answers} == {200, 400}
    for answer in answers:
        assert answer.status_code == 200 or answer.json()["error"]["param"] == "input", answer.text
    after = post(stack, [part(saved(exhibits[0].picture, "PNG"))]).json()["data"]
    np.testing.assert_allclose(after[0]["embedding"], before[0]["embedding"], atol=1e-5)


def test_pictures_never_mix(client: OpenAI, exhibits: list[Exhibit], peer: PicturePeer) -> None:
    """Eight clients with pictures of their own, computed together: each gets its own vector."""
    own = exhibits[::4]
    expected = peer.pictures([one.picture for one in own])
    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(lambda one: embedded(client, [part(saved(one.picture, "PNG"))])[0], own))
    assert (np.array(found) * expected).sum(1).min() >= CLOSE


def tensor(name: str, array: np.ndarray, kind: str) -> Any:
    made = kserve.InferInput(name, list(array.shape), kind)
    made.set_data_from_numpy(array)
    return made


def test_all_four_models_answer_kserve_clients(
    stack: Stack, exhibits: list[Exhibit], peer: PicturePeer
) -> None:
    """Façades and raw encoders, by Triton's own client."""
    client = kserve.InferenceServerClient(stack.kserve.removeprefix("http://"))
    few = exhibits[:3]
    files = [saved(one.picture, "PNG") for one in few]
    pixels = peer.pixels([one.picture for one in few])
    expected = peer.pictures([one.picture for one in few])
    asked = [
        ("clip_image", tensor("image", np.array([[data] for data in files], object), "BYTES")),
        ("clip_image_encoder", tensor("pixel_values", pixels, "FP32")),
    ]
    for model, given in asked:
        vectors = client.infer(model, [given]).as_numpy("embedding")
        assert (vectors * expected).sum(1).min() >= CLOSE, model
    one = np.frombuffer(files[0], np.uint8)[None]
    vector = client.infer("clip_image", [tensor("image_bytes", one, "UINT8")]).as_numpy("embedding")
    assert (vector * expected[:1]).sum(1).min() >= CLOSE
    captions = [one.caption for one in few]
    texts = tensor("text", np.array([[text.encode()] for text in captions], object), "BYTES")
    facade = client.infer("clip_text", [texts]).as_numpy("embedding")
    coded = peer.coded(captions)
    raw = client.infer(
        "clip_text_encoder",
        [tensor(name, coded[name].astype(np.int32), "INT32") for name in ("input_ids", "attention_mask")],
    ).as_numpy("embedding")
    np.testing.assert_allclose(facade, raw, atol=1e-5)
    assert (raw * peer.texts(captions)).sum(1).min() >= CLOSE
    with pytest.raises(Exception, match="image 0 is not a picture"):
        client.infer("clip_image", [tensor("image", np.array([[b"x"]], object), "BYTES")])
    with pytest.raises(Exception, match="it must be \\[3, 96, 96\\]"):
        client.infer(
            "clip_image_encoder", [tensor("pixel_values", np.zeros((1, 3, 8, 8), np.float32), "FP32")]
        )


def test_base64_and_long_texts(stack: Stack, client: OpenAI) -> None:
    """As other embedding models: cut where that is asked for, else refused with the number of tokens."""
    assert json.loads(post(stack, "a " * 100).text)["error"]["message"].startswith("input [0] has 102 tokens")
    cut = embedded(client, "a " * 100, extra_body={"truncate": True})
    np.testing.assert_allclose(cut, embedded(client, "a " * 75), atol=1e-5)
    coded = post(stack, [part(saved(noise(30, 30), "PNG"))], encoding_format="base64").json()["data"][0]
    assert len(np.frombuffer(base64.b64decode(coded["embedding"]), "<f4")) == 128


def test_the_torch_engine(tmp_path: Path, exhibits: list[Exhibit], peer: PicturePeer) -> None:
    """One instance of TARGET=torch: the same vectors, pictures and texts in one request."""
    build = [sys.executable, "-m", "build", "engines", "--target", "torch", "--model-id", MODEL]
    subprocess.run(build, cwd=ROOT, check=True)
    few = exhibits[:40]
    with started(portable(tmp_path, TORCH_PORT, MODEL, 1) | {"TARGET": "torch"}, tidy=False) as stack:
        client = stack.openai()
        mixed = [part(saved(one.picture, "PNG")) for one in few] + [one.caption for one in few]
        found = embedded(client, mixed)
    expected = np.concatenate(
        [peer.pictures([one.picture for one in few]), peer.texts([one.caption for one in few])]
    )
    assert (found * expected).sum(1).min() >= 0.999  # float16 where there is a GPU
