"""Text models in a running stack: Triton's own models as upstream's guides use them, and the OpenAI API."""

from __future__ import annotations

import json
import random
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from queue import Queue
from typing import Any

import httpx
import numpy as np
import openai
import pytest
import tritonclient.grpc as grpc

from miniatures.training.text.tasks import (
    Pair,
    condense,
    restore,
    restore_paragraph,
    sort_numbers,
    sort_words,
    summarize,
    to_english,
    to_spanish,
)
from miniatures.training.text.world import Draw

from .clients import events, figure, tensors, wait_in_flight
from .conftest import Stack, until
from .test_clients import command

QUESTIONS = {
    "mini-t5": (summarize, to_spanish, to_english, sort_words, sort_numbers),
    "mini-bart": (restore, restore_paragraph, condense),
}
TOKENS = 100


def questions(model: str, count: int) -> list[Pair]:
    """Held-out questions with their answers."""
    rng = random.Random(f"stack {model}")
    return [task(rng, True) for task in QUESTIONS[model] for _ in range(count)]


def openings(count: int) -> list[str]:
    """First sentences of held-out paragraphs."""
    draw = Draw(random.Random(5))
    return [draw.paragraph(held=True).sentences[0].text for _ in range(count)]


def prompts(model: str) -> list[str]:
    return openings(4) if model == "mini-gpt2" else [pair.source for pair in questions(model, 2)]


def generate(stack: Stack, model: str, name: str, **fields: Any) -> httpx.Response:
    return httpx.post(
        f"{stack.kserve}/models/{model}/v2/models/{name}/generate",
        json={"max_tokens": TOKENS, **fields},
        timeout=60,
    )


def text(stack: Stack, model: str, name: str, **fields: Any) -> Any:
    answer = generate(stack, model, name, **fields)
    assert answer.status_code == 200, answer.text
    return answer.json()["text_output"]


@pytest.mark.parametrize("model", list(QUESTIONS))
def test_held_out_questions_are_answered(text_stack: Stack, model: str) -> None:
    """At least nine of ten exactly, through the OpenAI API."""
    asked = questions(model, 8)

    def ask(pair: Pair) -> str:
        answer = text_stack.openai().completions.create(
            model=model, prompt=pair.source, max_tokens=TOKENS, temperature=0
        )
        return answer.choices[0].text

    with ThreadPoolExecutor(8) as threads:
        right = [
            answer.strip() == pair.target for answer, pair in zip(threads.map(ask, asked), asked, strict=True)
        ]
    assert np.mean(right) >= 0.9, right


def test_the_guides_curl_commands(text_stack: Stack) -> None:
    """Upstream's guide to encoder-decoder models: words as a string and as lists; the bad words are absent,
    the text ends before the stop word.
    """
    pair = questions("mini-t5", 1)[0]
    words = pair.target.rstrip(".").split()
    plain = {"text_input": pair.source, "max_tokens": 200, "bad_words": "", "stop_words": ""}
    assert curl(text_stack, plain)["text_output"] == pair.target
    without = curl(text_stack, {**plain, "bad_words": [words[1], words[-1]]})["text_output"]
    assert without
    assert not {words[1], words[-1]} & set(without.rstrip(".").split())
    assert curl(text_stack, {**plain, "stop_words": [words[2], words[3]]})["text_output"] == " ".join(
        words[:2]
    )
    assert curl(text_stack, {**plain, "stop_words": words[2]})["text_output"] == " ".join(words[:2])
    assert curl(text_stack, {**plain, "stop_words": "."})["text_output"] == pair.target.rstrip(".")


def curl(stack: Stack, body: dict[str, Any]) -> dict[str, Any]:
    """The first model of MODEL_ID owns the plain path."""
    url = f"{stack.kserve}/v2/models/ensemble/generate"
    command = ["curl", "-s", "-X", "POST", url, "-d", json.dumps(body)]
    done = subprocess.run(command, check=True, capture_output=True, timeout=60)
    return dict(json.loads(done.stdout))


@pytest.mark.parametrize("model", ["mini-t5", "mini-bart", "mini-gpt2"])
def test_streams_grow_to_the_whole_text(text_stack: Stack, model: str) -> None:
    """generate_stream under upstream's names: pieces add up, with accumulate_tokens each is the text so far;
    the first comes before the last.
    """
    prompt = max(prompts(model), key=len)
    whole = text(text_stack, model, "ensemble", text_input=prompt)
    for name in ("ensemble", "tensorrt_llm_bls"):
        for accumulate in (False, True):
            body = {
                "text_input": prompt,
                "max_tokens": TOKENS,
                "stream": True,
                "accumulate_tokens": accumulate,
            }
            with httpx.stream(
                "POST",
                f"{text_stack.kserve}/models/{model}/v2/models/{name}/generate_stream",
                json=body,
                timeout=60,
            ) as answer:
                found = events(answer)
            pieces = [said["text_output"] for said in found]
            assert len(pieces) > 1
            assert pieces[-1] == whole if accumulate else "".join(pieces) == whole
            assert not accumulate or all(after.startswith(before) for before, after in pairwise(pieces))


def test_completions_stream(text_stack: Stack) -> None:
    """The official client: the first token before the last is made, pieces equal the whole, usage
    at the end.
    """
    arguments: dict[str, Any] = {
        "model": "mini-gpt2",
        "prompt": openings(1)[0],
        "max_tokens": 60,
        "temperature": 0,
    }
    whole = text_stack.openai().completions.create(**arguments)
    times, pieces, usage = [], [], None
    for chunk in text_stack.openai().completions.create(
        **arguments, stream=True, stream_options={"include_usage": True}
    ):
        times.append(time.monotonic())
        pieces += [choice.text for choice in chunk.choices]
        usage = chunk.usage or usage
    assert "".join(pieces) == whole.choices[0].text
    assert len(pieces) > 2
    assert times[0] < times[-1] - 0.01
    assert usage == whole.usage


def test_completions_fields(text_stack: Stack) -> None:
    """Several prompts and texts, echo, stop, best_of, log probabilities, bias, seeds."""
    create = text_stack.openai().completions.create
    prompt = openings(1)[0]
    two = create(model="mini-gpt2", prompt=[prompt, openings(2)[1]], n=2, max_tokens=12, seed=7)
    assert [choice.index for choice in two.choices] == [0, 1, 2, 3]
    once, again, other = (
        create(model="mini-gpt2", prompt=prompt, max_tokens=30, seed=seed).choices[0].text
        for seed in (7, 7, 8)
    )
    assert once == again != other
    assert two.usage and two.usage.completion_tokens == 48
    echo = create(model="mini-gpt2", prompt=prompt, echo=True, max_tokens=30, temperature=0, stop=["."])
    assert echo.choices[0].text.startswith(prompt)
    assert (echo.choices[0].finish_reason, echo.choices[0].text.count(".")) == ("stop", 1)
    beams = create(model="mini-gpt2", prompt=prompt, best_of=4, n=3, max_tokens=12, logprobs=0)
    sums = [
        sum(choice.logprobs.token_logprobs)
        for choice in beams.choices
        if choice.logprobs and choice.logprobs.token_logprobs
    ]
    assert len({choice.text for choice in beams.choices}) == len(sums) == 3
    probs = create(model="mini-gpt2", prompt=prompt, logprobs=3, max_tokens=8, temperature=0).choices[0]
    assert probs.logprobs and probs.logprobs.tokens and probs.logprobs.top_logprobs
    assert "".join(probs.logprobs.tokens) == probs.text
    assert all(
        max(top, key=lambda name: top[name]) == token
        for top, token in zip(probs.logprobs.top_logprobs, probs.logprobs.tokens, strict=True)
    )


def test_chat(text_stack: Stack) -> None:
    """mini-gpt2's template puts the messages one after the other; mini-t5 has none. An answer begins with its
    first letter, its tokens with the blank before it.
    """
    prompt = openings(1)[0]
    plain = (
        text_stack.openai()
        .completions.create(model="mini-gpt2", prompt=prompt, max_tokens=40, temperature=0)
        .choices[0]
        .text
    )
    messages: list[Any] = [{"role": "user", "content": prompt}]
    answer = text_stack.openai().chat.completions.create(
        model="mini-gpt2", messages=messages, max_tokens=40, temperature=0, logprobs=True
    )
    assert answer.choices[0].message.content == plain.lstrip()
    assert answer.choices[0].logprobs and answer.choices[0].logprobs.content
    assert "".join(row.token for row in answer.choices[0].logprobs.content) == plain
    streamed = text_stack.openai().chat.completions.create(
        model="mini-gpt2", messages=messages, max_tokens=40, temperature=0, stream=True
    )
    assert "".join(chunk.choices[0].delta.content or "" for chunk in streamed) == plain.lstrip()
    with pytest.raises(openai.BadRequestError, match="does not support chat"):
        text_stack.openai().chat.completions.create(model="mini-t5", messages=messages)


REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({"max_tokens": 4096}, "max_tokens", ""),
    ({"logit_bias": {"99999": 1}}, "logit_bias", ""),
    ({"model": "mini-whisper"}, "model", ""),
    ({"model": "gpt-5"}, "model", ""),
    ({"prompt": "word " * 3000}, "prompt", ""),
    ({"prompt": "word " * 3000, "stream": True}, "prompt", ""),
    ({"model": "mini-bart", "prompt": "word " * 3000}, "prompt", "tokens, this model reads at most 256"),
]


@pytest.mark.parametrize(
    ("fields", "param", "says"), REFUSED, ids=[json.dumps(row[0])[:40] for row in REFUSED]
)
def test_bad_requests_name_the_field(
    text_stack: Stack, fields: dict[str, Any], param: str, says: str
) -> None:
    """A 4xx in OpenAI's shape, never a silent 200: what a model cannot, whatever its form."""
    answer = httpx.post(
        f"{text_stack.url}/v1/completions",
        json={"model": "mini-t5", "prompt": "sort: cat dog", **fields},
        timeout=60,
    )
    assert 400 <= answer.status_code < 500, answer.text
    error = answer.json()["error"]
    assert error["param"] == param and says in error["message"], answer.text


def test_each_model_by_every_name(text_stack: Stack) -> None:
    """At the gateway by its name, at Triton by x-model-id and by path; the first of MODEL_ID owns the plain
    path.
    """
    pair, opening = questions("mini-t5", 1)[0], openings(1)[0]
    listed = {model.id for model in text_stack.openai().models.list()}
    assert listed == {"mini-t5", "mini-bart", "mini-gpt2", "mini-whisper"}
    body = {"text_input": opening, "max_tokens": 30}
    by_path = text(text_stack, "mini-gpt2", "ensemble", **body)
    by_header = httpx.post(
        f"{text_stack.kserve}/v2/models/ensemble/generate",
        json=body,
        headers={"x-model-id": "mini-gpt2"},
        timeout=60,
    ).json()["text_output"]
    plain = httpx.post(
        f"{text_stack.kserve}/v2/models/ensemble/generate",
        json={"text_input": pair.source, "max_tokens": TOKENS},
        timeout=60,
    ).json()
    assert by_path == by_header
    assert plain["text_output"] == pair.target


def stopped_streams(stack: Stack) -> int:
    """How many streams of the façade clients have left, at all instances."""
    left = {"triton_model": "tensorrt_llm_bls_stream", "protocol": "http", "status": "499"}
    pages = [httpx.get(f"{stack.kserve}/instances/{i}/metrics", timeout=10).text for i in range(3)]
    return sum(figure(page, "conch_kserve_requests_total", **left) for page in pages)


def test_streams_that_are_left_are_stopped(text_stack: Stack) -> None:
    """All texts of each, through the gateway, as soon as the client has gone; so no thread of the façade and
    no row of the engine is left.
    """
    body = {
        "model": "mini-gpt2",
        "prompt": openings(1)[0],
        "max_tokens": 400,
        "n": 12,
        "stream": True,
        "logit_bias": {"1999": -100},
    }
    before = stopped_streams(text_stack)
    for _ in range(7):
        with httpx.stream("POST", f"{text_stack.url}/v1/completions", json=body, timeout=60) as answer:
            assert next(answer.iter_lines()).startswith("data: {")
    until("all are stopped", lambda: stopped_streams(text_stack) - before >= 7 * 12, 30)
    chunks = text_stack.openai().completions.create(
        model="mini-gpt2", prompt=openings(1)[0], max_tokens=4, stream=True, timeout=20
    )
    assert "".join(chunk.choices[0].text for chunk in chunks)


@pytest.mark.parametrize("stop", [None, "\u2603"], ids=["plain", "with a stop sequence"])
def test_whole_texts_that_are_left_are_stopped(text_stack: Stack, stop: str | None) -> None:
    """With a stop sequence, too, where the facade may end them itself."""

    def engine(name: str) -> int:
        pages = [httpx.get(f"{text_stack.kserve}/instances/{i}/metrics", timeout=10).text for i in range(3)]
        return sum(figure(page, f"conch_engine_{name}") for page in pages)

    body = {"model": "mini-gpt2", "prompt": openings(1)[0], "max_tokens": 400, "n": 12, "stop": stop}
    before = engine("tokens_total")
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(
            f"{text_stack.url}/v1/completions", json={**body, "logit_bias": {"1999": -100}}, timeout=0.4
        )
    until("all are stopped", lambda: not engine("rows_in_use"), 10)
    assert engine("tokens_total") - before < 12 * 400 / 2


def test_streams_cancelled_over_grpc_free_the_engine(text_stack: Stack) -> None:
    """Sixteen of 500 tokens fill the batch; to its end it would take several times as long as one alone."""
    inputs = tensors(
        grpc,
        text_input=np.array([[b"On Monday"]], object),
        max_tokens=np.array([[500]], np.int32),
        stream=np.array([[True]]),
        end_id=np.array([[-1]], np.int32),
    )
    started = time.monotonic()
    text(text_stack, "mini-gpt2", "tensorrt_llm_bls", text_input="On Monday", max_tokens=400, end_id=-1)
    alone = time.monotonic() - started
    begun: Queue[Any] = Queue()
    clients = [grpc.InferenceServerClient(text_stack.grpc) for _ in range(16)]
    for triton in clients:
        triton.start_stream(lambda result, error: begun.put(error), headers={"x-model-id": "mini-gpt2"})
        triton.async_stream_infer("tensorrt_llm_bls_stream", inputs)
    assert begun.get(timeout=30) is None
    wait_in_flight(text_stack.kserve, range(3), 16)
    for triton in clients:
        triton.stop_stream(cancel_requests=True)
    started = time.monotonic()
    text(text_stack, "mini-gpt2", "tensorrt_llm_bls", text_input="On Monday", max_tokens=5)
    assert time.monotonic() - started < 1.5 * alone


@pytest.mark.parametrize(
    ("model", "way"),
    [("mini-t5", ["--url", "{url}", "--stream"]), ("mini-bart", ["--triton", "{kserve}"])],
)
def test_prompts(text_stack: Stack, tmp_path: Path, model: str, way: list[str]) -> None:
    """`scripts/prompts`: nearly all answers are right, whichever way they go, and they stand in a file."""
    asked = questions(model, 4)
    (tmp_path / "q.jsonl").write_text(
        "\n".join(json.dumps({"prompt": pair.source, "reference": pair.target}) for pair in asked), "utf-8"
    )
    where = [option.format(url=text_stack.url, kserve=text_stack.kserve) for option in way]
    options = ["--model", model, "--num-tasks", "4", "--output", tmp_path / "a.jsonl", "--json"]
    done = command("prompts", tmp_path / "q.jsonl", *where, *options)
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)
    assert (figures["answered"], figures["failed"], figures["compared"]) == (len(asked), 0, len(asked))
    assert figures["exact"] >= 0.8
    assert figures["rouge"]["rouge1"] >= figures["rouge"]["rougeL"] >= 0.9
    assert figures["tokens"] >= 3 * len(asked)
    assert bool(figures["first"]) == ("--stream" in way)
    answers = [json.loads(line) for line in (tmp_path / "a.jsonl").read_text("utf-8").splitlines()]
    assert [row["prompt"] for row in answers] == [pair.source for pair in asked]
    assert all(row["answer"] for row in answers)
