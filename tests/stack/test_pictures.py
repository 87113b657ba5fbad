"""Questions about pictures: mini-llava and mini-blip2, asked by OpenAI's SDK and by what NVIDIA's multimodal
client sends, compared with transformers on the same weights.
"""

from __future__ import annotations

import os
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from typing import Any

import httpx
import numpy as np
import pytest
import torch
import tritonclient.grpc as grpcclient
from openai import BadRequestError, OpenAI
from PIL import Image

from miniatures.training.answers.corpus import asked
from miniatures.training.answers.evaluate import AnswerPair, AnswerPeer, held_out
from miniatures.training.answers.pictures import ALL, drawn, small
from miniatures.training.answers.questions import PictureQuestion, questions
from miniatures.training.pictures.train import normalized
from scripts.clients import ask
from tests.ports import first_port

from ..attack.faults import replaced, starts
from ..fakes.pictures import broken, noise, part, png, saved
from .blocks import Block, those_of
from .clients import streamed, tensors
from .conftest import ROOT, Stack, portable, started, until
from .processes import all_of, tritonserver

PORT = first_port("pictures")
MODEL, OTHER = "mini-llava", "mini-blip2"
KINDS = {MODEL: "llava", OTHER: "blip2"}
LONGEST = 40


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """Two instances of mini-llava, one of mini-blip2, and one of a model that reads text alone."""
    models = f"{MODEL},mini-gpt2,{OTHER}"
    home = tmp_path_factory.mktemp("pictures")
    with started(portable(home, PORT, models, 4, build=True), tidy=False) as found:
        yield found


@pytest.fixture(scope="module")
def pairs() -> list[AnswerPair]:
    return held_out(40)


@pytest.fixture(scope="module")
def peers() -> dict[str, AnswerPeer]:
    """Transformers, greedily, in float32."""
    return {model: AnswerPeer(kind, ROOT / "miniatures" / kind) for model, kind in KINDS.items()}


@pytest.fixture(scope="module")
def described(peers: dict[str, AnswerPeer]) -> list[AnswerPair]:
    """40 pictures, the same question about all of them, and for each an answer that is right for it alone.
    Transformers gives these; of a few more that are drawn it may not.
    """
    rng, found = Random(78), dict[str, AnswerPair]()
    while len(found) < 48:
        scene, picture = drawn(rng, ALL[len(found) % len(ALL)], held=True)
        right = next(one.answer for one in questions(scene, rng) if one.kind == "description")
        found[right] = AnswerPair(
            small(picture), PictureQuestion("what is in the picture?", right, "description")
        )
    pairs = [*found.values()]
    answers = peers[MODEL].answers(pairs)
    known = [one for one, answer in zip(pairs, answers, strict=True) if answer == one.question.answer]
    assert len(known) >= 40
    return known[:40]


def said(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def about(pair: AnswerPair) -> list[Any]:
    content = [part(saved(pair.picture, "PNG")), said(pair.question.text)]
    return [{"role": "user", "content": content}]


def answered(client: OpenAI, messages: list[Any], model: str = MODEL) -> str:
    done = client.chat.completions.create(
        model=model, messages=messages, temperature=0, max_completion_tokens=LONGEST
    )
    return (done.choices[0].message.content or "").strip()


def together(client: OpenAI, pairs: list[AnswerPair], model: str = MODEL) -> list[str]:
    """Answers to all of them, asked at once."""
    with ThreadPoolExecutor(len(pairs)) as threads:
        return list(threads.map(lambda pair: answered(client, about(pair), model), pairs))


def alike(found: list[str], wanted: list[str]) -> float:
    """The share of equal answers: decoders compute in bf16 where the CPU multiplies that."""
    return float(np.mean([one == other for one, other in zip(found, wanted, strict=True)]))


@pytest.mark.parametrize("model", [*KINDS])
def test_answers_are_transformers(
    client: OpenAI, pairs: list[AnswerPair], peers: dict[str, AnswerPeer], model: str
) -> None:
    """Whole answers to 40 questions of every kind: a few alone, and all at once."""
    expected = peers[model].answers(pairs)
    assert alike(expected, [pair.question.answer for pair in pairs]) >= 0.95, "it has learnt to see"
    alone = [answered(client, about(pair), model) for pair in pairs[:5]]
    assert alike([*alone, *together(client, pairs, model)], [*expected[:5], *expected]) >= 0.95


def test_one_question_about_forty_pictures(client: OpenAI, described: list[AnswerPair]) -> None:
    """All at once: 40 right answers, of which no two are the same."""
    assert together(client, described) == [pair.question.answer for pair in described]


def test_one_question_about_forty_pictures_while_an_instance_dies(
    stack: Stack, client: OpenAI, described: list[AnswerPair]
) -> None:
    """kill -9 of one of two tritonservers under 40 clients: 40 right answers, and another server."""
    before = starts(stack, range(4))
    killer = threading.Timer(0.3, lambda: os.kill(tritonserver(stack, 0), signal.SIGKILL))
    killer.start()
    found = together(client, described)
    killer.join()
    assert found == [pair.question.answer for pair in described]
    until("it is back", lambda: replaced(stack, before, 0), 60)


def test_streamed(client: OpenAI, pairs: list[AnswerPair]) -> None:
    """The same text, piece by piece, with usage that counts the picture's rows."""
    whole = pairs[0].question.answer
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


def test_several_pictures_and_turns(client: OpenAI, pairs: list[AnswerPair]) -> None:
    """Two pictures in a message, one more in a later turn, a system message, log probabilities, stop. It
    learnt to look at one picture alone, so its answers are not checked here.
    """
    first, second, third = (saved(pair.picture, "PNG") for pair in pairs[:3])
    messages = [
        {"role": "system", "content": "Answer briefly."},
        {"role": "user", "content": [part(first), part(second), said("what is in the picture?")]},
        {"role": "assistant", "content": "a red star"},
        {"role": "user", "content": [part(third), said("what colour is the background?")]},
    ]
    done = client.chat.completions.create(
        model=MODEL, messages=messages, temperature=0, max_tokens=8, logprobs=True, top_logprobs=2, stop=["!"]
    )  # type: ignore[call-overload]
    assert done.choices[0].logprobs.content
    assert done.usage.prompt_tokens > 3 * 144
    assert answered(client, messages) == answered(client, messages)


def test_turns(client: OpenAI, described: list[AnswerPair]) -> None:
    """The first question is about the picture, and so is the second, two messages later."""
    words = "what colour is the background?"
    for pair in described[:5]:
        first = pair.question.answer
        messages = [
            *about(pair),
            {"role": "assistant", "content": first},
            {"role": "user", "content": words},
        ]
        assert answered(client, messages) == answered(
            client, about(AnswerPair(pair.picture, PictureQuestion(words, "", "")))
        )


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ([part(b"hello"), said("what?")], "picture 1 is not a picture that can be read"),
        ([said("<image> what?")], "the text has <image> 1 times, and 0 pictures were sent"),
        ([part(saved(noise(9, 9), "PNG")) for _ in range(9)], "positions"),
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


def held(stack: Stack) -> float:
    """The most memory that each process of the stack ever had, all of them together, in MB."""
    states = [Path(f"/proc/{pid}/status").read_text() for pid in all_of(stack)]
    return sum(int(one.partition("VmHWM:")[2].split()[0]) for one in states) / 1024


TRAPS = [
    png(8192, 8192), png(2**31 - 1, 1), png(0, 0), png(1, 1, depth=99), b"GIF89a" + b"\xff" * 500,
    b"RIFF\xff\xff\xff\xffWEBPVP8 ", b"<svg><!ENTITY a 'b'></svg>", b"%PDF-1.7", b"PK\x03\x04", b"",
    b"BM" + b"\0" * 60, saved(noise(40, 40), "PNG") + b"<?php", saved(noise(1, 9000), "PNG"),
    *[saved(Image.new("1", (1, long)), "PNG") for long in (65_000, 4_000_000)],
    *[saved(Image.new(mode, (8000, 8000)), "PNG") for mode in ("1", "1", "L", "LA")],
]  # fmt: skip


@pytest.mark.timeout(1200)
def test_hostile_pictures(stack: Stack, client: OpenAI, pairs: list[AnswerPair]) -> None:
    """Broken files and traps, eight clients at once: 200 or 400, nothing else, in bounded memory; no process
    ends, and answers are as before. CONCH_BROKEN: how many of each of five kinds (10).
    """
    files = [*broken(int(os.environ.get("CONCH_BROKEN", "10"))), *TRAPS]
    before, processes, memory = answered(client, about(pairs[0])), all_of(stack), held(stack)
    # One client for all: each would read the system's certificates again, which takes longer than an answer.
    limits = httpx.Limits(max_connections=8)
    with httpx.Client(base_url=stack.url, timeout=120, limits=limits) as http:

        def post(data: bytes) -> int:
            messages = [{"role": "user", "content": [part(data), said("what?")]}]
            body = {"model": MODEL, "messages": messages, "max_tokens": 1, "temperature": 0}
            return http.post("/v1/chat/completions", json=body).status_code

        with ThreadPoolExecutor(8) as threads:
            found = Counter(threads.map(post, files))
    grown = held(stack) - memory
    print(f"\n{len(files)} pictures: {dict(found)}; {grown:.0f} MB more at the peak")
    assert set(found) == {200, 400}
    assert found.total() == len(files)
    assert grown < 2500
    assert all_of(stack) == processes
    assert answered(client, about(pairs[0])) == before


def nvidias(kind: str, pair: AnswerPair, *, stream: bool) -> list[Any]:
    """What tools/multimodal/client.py sends with this --model_type, for a miniature's own end."""
    pixels = normalized(torch.from_numpy(np.asarray(pair.picture)[None].copy()))
    text = asked(kind, pair.question.text, first=True) if kind == "blip2" else pair.question.text
    end, pad = (1, 2) if kind == "llava" else (0, 1)
    return tensors(
        grpcclient,
        text_input=np.array([[text.encode()]], object),
        image_input=pixels.numpy()[None].astype(np.float16),
        max_tokens=np.array([[LONGEST]], np.int32),
        beam_width=np.array([[1]], np.int32),
        temperature=np.array([[1.0]], np.float32),
        end_id=np.array([[end]], np.int32),
        pad_id=np.array([[pad]], np.int32),
        top_k=np.array([[1]], np.int32),
        top_p=np.array([[0.0]], np.float32),
        stream=np.array([[stream]], bool),
        repetition_penalty=np.array([[1.0]], np.float32),
    )


@pytest.mark.parametrize("model", ["ensemble", "tensorrt_llm_bls"])
@pytest.mark.parametrize("pool", [*KINDS])
def test_nvidias_client(stack: Stack, pairs: list[AnswerPair], pool: str, model: str) -> None:
    """Its requests of both --model_type, whole and with --streaming, with and without --use_bls."""
    triton, to = grpcclient.InferenceServerClient(stack.grpc), {"x-model-id": pool}
    outputs = [grpcclient.InferRequestedOutput("text_output")]
    for pair in pairs[:5]:
        asking = nvidias(KINDS[pool], pair, stream=False)
        done = triton.infer(model, asking, outputs=outputs, headers=to)
        assert done.as_numpy("text_output")[0].decode().strip() == pair.question.answer
        asking = nvidias(KINDS[pool], pair, stream=True)
        pieces = streamed(stack, f"{model}_stream", asking, "text_output", to)
        assert "".join(pieces).strip() == pair.question.answer


def test_the_terminal(stack: Stack, pairs: list[AnswerPair], tmp_path: Any, capsys: Any) -> None:
    """scripts/ask by both protocols."""
    path = tmp_path / "picture.png"
    pairs[0].picture.save(path)
    given = [str(path), "what colour is the background?", "--model", MODEL]
    assert ask.main([*given, "--url", stack.url]) == 0
    by_gateway = capsys.readouterr().out
    assert by_gateway.strip()
    assert ask.main([*given, "--triton", f"{stack.kserve}", "--stream"]) == 0
    assert capsys.readouterr().out.strip()


@those_of("pictures")
def test_the_example_of_the_guide(
    stack: Stack, tmp_path: Path, block: Block, pairs: list[AnswerPair]
) -> None:
    (tmp_path / "picture.png").write_bytes(saved(pairs[0].picture, "PNG"))
    assert block.run(stack, tmp_path, {"llava-1.5-7b": "mini-llava"}).strip()
