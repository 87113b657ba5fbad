"""Questions about pictures: mini-llava, asked by OpenAI's SDK and by what NVIDIA's multimodal client sends,
beside transformers on the same weights.
"""

from __future__ import annotations

import base64
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import numpy as np
import pytest
import torch
import tritonclient.grpc as grpcclient
from openai import BadRequestError, OpenAI
from PIL import Image

from miniatures.answers.evaluate import Pair, Peer, held_out
from miniatures.answers.models import normalized
from scripts.clients import ask

from ..unit.serving.test_clip import broken, noise, png, saved
from .conftest import ROOT, Stack, portable, started
from .test_faults import tritonserver

pytestmark = pytest.mark.skipif(
    not (ROOT / "miniatures" / "llava" / "model.safetensors").exists(),
    reason="mini-llava has no weights yet; train it (miniatures/README.md) and add it to catalog.toml",
)
PORT = 11580
MODEL = "mini-llava"
LONGEST = 40


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """Two instances, and one of a model that reads text alone."""
    models = f"{MODEL},mini-gpt2"
    build = [sys.executable, "-m", "build", "engines", "--target", "openvino", "--model-id", models]
    subprocess.run(build, cwd=ROOT, check=True)
    with started(portable(tmp_path_factory.mktemp("pictures"), PORT, models, 3), tidy=False) as found:
        yield found


@pytest.fixture(scope="module")
def client(stack: Stack) -> OpenAI:
    return OpenAI(base_url=f"{stack.url}/v1", api_key="none", max_retries=0, timeout=120)


@pytest.fixture(scope="module")
def pairs() -> list[Pair]:
    return held_out(40)


@pytest.fixture(scope="module")
def expected(pairs: list[Pair]) -> list[str]:
    """What transformers answers, greedily, in float32."""
    return Peer("llava", ROOT / "miniatures" / "llava").answers(pairs)


def url(data: bytes, kind: str = "png") -> str:
    return f"data:image/{kind};base64,{base64.b64encode(data).decode()}"


def seen(data: bytes, kind: str = "png") -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url(data, kind)}}


def said(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def about(pair: Pair) -> list[Any]:
    content = [seen(saved(pair.picture, "PNG")), said(pair.question.text)]
    return [{"role": "user", "content": content}]


def answered(client: OpenAI, messages: list[Any], **fields: Any) -> str:
    done = client.chat.completions.create(
        model=MODEL, messages=messages, temperature=0, max_completion_tokens=LONGEST, **fields
    )
    return (done.choices[0].message.content or "").strip()


def alike(found: list[str], wanted: list[str]) -> float:
    """The share of equal answers: decoders compute in bf16 where the CPU multiplies that."""
    return float(np.mean([one == other for one, other in zip(found, wanted, strict=True)]))


def test_answers_are_transformers(client: OpenAI, pairs: list[Pair], expected: list[str]) -> None:
    """Whole answers, one after the other, and 40 at once, each about its own picture."""
    alone = [answered(client, about(pair)) for pair in pairs]
    assert alike(alone, expected) >= 0.95
    with ThreadPoolExecutor(40) as threads:
        together = list(threads.map(lambda pair: answered(client, about(pair)), pairs))
    assert alike(together, expected) >= 0.95


def test_one_question_about_forty_pictures_while_an_instance_dies(
    stack: Stack, client: OpenAI, pairs: list[Pair]
) -> None:
    """kill -9 of one of two tritonservers under 40 clients: every answer is about its picture."""
    words = "what is in the picture?"
    asked = [[{"role": "user", "content": [seen(saved(one.picture, "PNG")), said(words)]}] for one in pairs]
    alone = [answered(client, one) for one in asked]
    assert len(set(alone)) > 30, "pictures differ, and so do the answers"
    with ThreadPoolExecutor(40) as threads:
        killer = threading.Timer(0.3, lambda: os.kill(tritonserver(stack, 0), signal.SIGKILL))
        killer.start()
        together = list(threads.map(lambda one: answered(client, one), asked))
        killer.join()
    assert alike(together, alone) >= 0.95


def test_streamed(client: OpenAI, pairs: list[Pair]) -> None:
    """The same text, piece by piece, with usage that counts the picture's rows."""
    whole = answered(client, about(pairs[0]))
    stream = client.chat.completions.create(
        model=MODEL,
        messages=about(pairs[0]),
        temperature=0,
        max_completion_tokens=LONGEST,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = list(stream)
    pieces = [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices]
    assert "".join(pieces).strip() == whole
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.prompt_tokens > 144


def test_several_pictures_and_turns(client: OpenAI, pairs: list[Pair]) -> None:
    """Two pictures in a message, one more in a later turn, a system message, log probabilities, stop."""
    first, second, third = (saved(pair.picture, "PNG") for pair in pairs[:3])
    messages = [
        {"role": "system", "content": "Answer briefly."},
        {"role": "user", "content": [seen(first), seen(second), said("what is in the picture?")]},
        {"role": "assistant", "content": "a red star"},
        {"role": "user", "content": [seen(third), said("what colour is the background?")]},
    ]
    done = client.chat.completions.create(
        model=MODEL, messages=messages, temperature=0, max_tokens=8, logprobs=True, top_logprobs=2, stop=["!"]
    )  # type: ignore[call-overload]
    assert done.choices[0].logprobs.content
    assert done.usage.prompt_tokens > 3 * 144
    assert answered(client, messages) == answered(client, messages)


def test_text_alone(client: OpenAI) -> None:
    """A model that looks at pictures reads texts as well."""
    assert isinstance(answered(client, [{"role": "user", "content": "what colour is the background?"}]), str)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ([seen(b"hello"), said("what?")], "picture 1 is not a picture that can be read"),
        ([seen(saved(noise(9, 9), "PNG")), seen(png(9000, 9000)), said("what?")], "picture 2 has more than"),
        ([seen(saved(noise(99, 99), "JPEG")[:900]), said("what?")], "picture 1 is a broken JPEG picture"),
        ([{"type": "image_url", "image_url": {"url": "http://127.0.0.1/a.png"}}], "would have to be fetched"),
        ([{"type": "image_url", "image_url": {"url": "data:image/png;base64,@@"}}], "base64 is broken"),
        ([said("<image> what?")], "the text has <image> 1 times, and 0 pictures came"),
        ([seen(saved(noise(9, 9), "PNG")) for _ in range(9)], "positions"),
    ],
)
def test_refusals(client: OpenAI, content: list[Any], sentence: str) -> None:
    """A 400 about the messages, whole and streamed."""
    for stream in (False, True):
        with pytest.raises(BadRequestError, match=sentence) as refused:
            client.chat.completions.create(
                model=MODEL, messages=[{"role": "user", "content": content}], stream=stream
            )  # type: ignore[call-overload]
        assert refused.value.param == "messages"


def test_a_text_model_says_that_it_is_one(client: OpenAI) -> None:
    with pytest.raises(BadRequestError, match="reads text alone"):
        client.chat.completions.create(
            model="mini-gpt2",
            messages=[{"role": "user", "content": [seen(saved(noise(9, 9), "PNG"))]}],  # type: ignore[typeddict-item]
        )


def test_hostile_pictures(stack: Stack, client: OpenAI, pairs: list[Pair]) -> None:
    """Broken files and traps, eight clients at once: 200 or 400, nothing else, and then answers as before.
    CONCH_BROKEN: how many of each of five kinds (20).
    """
    each = int(os.environ.get("CONCH_BROKEN", "20"))
    traps = [
        png(8192, 8192), png(2**31 - 1, 1), png(0, 0), png(1, 1, depth=99), b"GIF89a" + b"\xff" * 500,
        b"RIFF\xff\xff\xff\xffWEBPVP8 ", b"<svg><!ENTITY a 'b'></svg>", b"%PDF-1.7", b"PK\x03\x04", b"",
        b"BM" + b"\0" * 60, saved(noise(40, 40), "PNG") + b"<?php",
        saved(Image.new("1", (8000, 8000)), "PNG"), saved(noise(1, 9000), "PNG"),
    ]  # fmt: skip
    before = answered(client, about(pairs[0]))

    def post(data: bytes) -> httpx.Response:
        messages = [{"role": "user", "content": [seen(data), said("what?")]}]
        body = {"model": MODEL, "messages": messages, "max_tokens": 1, "temperature": 0}
        return httpx.post(f"{stack.url}/v1/chat/completions", json=body, timeout=120)

    with ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(post, [*broken(each), *traps]))
    assert len(answers) >= 5 * each
    assert {answer.status_code for answer in answers} == {200, 400}
    assert answered(client, about(pairs[0])) == before


def tensor(name: str, array: np.ndarray, kind: str) -> Any:
    made = grpcclient.InferInput(name, list(array.shape), kind)
    made.set_data_from_numpy(array)
    return made


def nvidias(pair: Pair, *, stream: bool, beams: int = 1) -> list[Any]:
    """What tools/multimodal/client.py sends with --model_type llava, for mini-llava's end id."""
    pixels = normalized(torch.from_numpy(np.asarray(pair.picture)[None].copy()))
    return [
        tensor("text_input", np.array([[pair.question.text.encode()]], object), "BYTES"),
        tensor("image_input", pixels.numpy()[None].astype(np.float16), "FP16"),
        tensor("max_tokens", np.array([[LONGEST]], np.int32), "INT32"),
        tensor("beam_width", np.array([[beams]], np.int32), "INT32"),
        tensor("temperature", np.array([[1.0]], np.float32), "FP32"),
        tensor("end_id", np.array([[1]], np.int32), "INT32"),
        tensor("pad_id", np.array([[2]], np.int32), "INT32"),
        tensor("top_k", np.array([[1]], np.int32), "INT32"),
        tensor("top_p", np.array([[0.0]], np.float32), "FP32"),
        tensor("stream", np.array([[stream]], bool), "BOOL"),
        tensor("repetition_penalty", np.array([[1.0]], np.float32), "FP32"),
    ]


@pytest.mark.parametrize("model", ["ensemble", "tensorrt_llm_bls"])
def test_nvidias_client(stack: Stack, pairs: list[Pair], model: str) -> None:
    """Its requests, whole and streamed; the answer is the same, and about the picture."""
    triton = grpcclient.InferenceServerClient(stack.grpc)
    for pair in pairs[:3]:
        done = triton.infer(
            model, nvidias(pair, stream=False), outputs=[grpcclient.InferRequestedOutput("text_output")]
        )
        whole = done.as_numpy("text_output")[0].decode()
        pieces: list[str] = []
        ended = threading.Event()

        def heard(result: Any, error: Any, pieces: list[str] = pieces, ended: Any = ended) -> None:
            assert error is None, error
            if (found := result.as_numpy("text_output")) is not None:
                pieces.append(found[0].decode())
            if result.get_response().parameters["triton_final_response"].bool_param:
                ended.set()

        with grpcclient.InferenceServerClient(stack.grpc) as streaming:
            streaming.start_stream(heard)
            streaming.async_stream_infer(
                f"{model}_stream", nvidias(pair, stream=True), enable_empty_final_response=True
            )
            assert ended.wait(60)
            streaming.stop_stream()
        assert "".join(pieces).strip() == whole.strip()


def test_the_terminal(stack: Stack, pairs: list[Pair], tmp_path: Any, capsys: Any) -> None:
    """scripts/ask by both doors."""
    path = tmp_path / "picture.png"
    pairs[0].picture.save(path)
    given = [str(path), "what colour is the background?", "--model", MODEL]
    assert ask.main([*given, "--url", stack.url]) == 0
    by_gateway = capsys.readouterr().out
    assert by_gateway.strip()
    assert ask.main([*given, "--triton", f"{stack.kserve}", "--stream"]) == 0
    assert capsys.readouterr().out.strip()
