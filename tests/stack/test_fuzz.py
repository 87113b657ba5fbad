"""A thousand requests and more, made from the OpenAPI schema and against it: no 5xx, no dead process, every
refusal in OpenAI's shape.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from typing import Any

import httpx
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from .clients import RECORDINGS
from .conftest import Stack

SEED = 20261121
ORDER = (RECORDINGS / "order.wav").read_bytes()
STATUSES: Counter[int] = Counter()
QUIET = settings(
    max_examples=100,
    deadline=None,
    database=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)


def judge_refusal(answer: Any) -> None:
    """A client error, in OpenAI's form."""
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}, answer.text
    assert len(error["message"]) > 10
    assert error["type"] == "invalid_request_error"


def judge(answer: Any) -> None:
    STATUSES[answer.status_code] += 1
    assert answer.status_code < 500, answer.text
    if answer.status_code >= 400:
        judge_refusal(answer)


def test_what_the_schema_allows(stack: Stack) -> None:
    """Requests of every shape that the schema describes; most hold a file that is none."""
    api = schemathesis.openapi.from_url(f"{stack.url}/openapi.json").include(path_regex="^/v1/audio")
    found = 0
    for operation in api.get_all_operations():
        found += 1

        @QUIET
        @seed(SEED)
        @given(case=operation.ok().as_strategy())
        def run(case: Any) -> None:
            judge(case.call(timeout=60))

        run()
    assert found == 2


NAMES = st.sampled_from(
    [
        "model",
        "prompt",
        "response_format",
        "temperature",
        "language",
        "max_tokens",
        "beam_width",
        "stream",
        "timestamp_granularities[]",
        "include[]",
        "chunking_strategy",
        "chunking_strategy[type]",
        "chunking_strategy[threshold]",
        "condition_on_previous_text",
        "keywords[]",
        "file[]",
        "stream[]",
        "[",
        "]",
    ]
)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
VALUES = st.one_of(
    TEXT,
    st.sampled_from(
        [
            "",
            "mini-whisper",
            "json",
            "verbose_json",
            "srt",
            "vtt",
            "text",
            "word",
            "segment",
            "logprobs",
            "auto",
            "true",
            "1",
            "0",
            "-1",
            "nan",
            "inf",
        ]
    ),
    st.sampled_from(
        [
            "1e309",
            "null",
            "[]",
            "{}",
            '{"type":"server_vad"}',
            "es",
            "en-US",
            "\x00",
            "<|en|>",
            "../../etc/passwd",
            "9" * 400,
        ]
    ),
    st.integers().map(str),
    st.floats().map(str),
)


@QUIET
@seed(SEED)
@given(
    fields=st.lists(st.tuples(st.one_of(NAMES, TEXT), VALUES), max_size=6),
    whole=st.booleans(),
    task=st.sampled_from(["transcriptions", "translations"]),
)
def test_a_good_file_with_fields_at_random(
    stack: Stack, fields: list[tuple[str, str]], whole: bool, task: str
) -> None:
    """Known, unknown, repeated and malformed fields next to a recording, or half of it."""
    parts: list[tuple[str, Any]] = [
        ("file", ("order.wav", ORDER if whole else ORDER[: len(ORDER) // 2])),
        ("model", (None, "mini-whisper")),
    ]
    parts += [(name or "x", (None, value)) for name, value in fields]
    judge(httpx.post(f"{stack.url}/v1/audio/{task}", files=parts, timeout=60))


def test_bodies_at_random(stack: Stack) -> None:
    """Bytes, broken multipart, and multipart with bytes flipped."""
    rng = random.Random(SEED)
    url = f"{stack.url}/v1/audio/transcriptions"
    whole = httpx.Request(
        "POST", url, files={"file": ORDER[:3000]}, data={"model": "mini-whisper", "language": "en"}
    )
    body, kind = whole.read(), whole.headers["content-type"]
    with httpx.Client(timeout=60) as client:
        for i in range(120):
            content = bytearray(body)
            for _ in range(rng.randint(1, 12)):
                content[rng.randrange(len(content))] = rng.randrange(256)
            if i % 3 == 0:
                del content[rng.randrange(len(content)) :]
            kinds = [kind, kind, kind, "application/json", kind[:-3], "multipart/form-data"]
            headers = {"content-type": rng.choice(kinds)}
            judge(client.post(url, content=bytes(content), headers=headers))


def test_the_stack_is_as_it_was(stack: Stack) -> None:
    """Hundreds of them were bad; a good one is still served."""
    print(f"\n{dict(STATUSES)}")
    assert sum(count for status, count in STATUSES.items() if status >= 400) >= 300
    assert httpx.get(f"{stack.url}/health/ready", timeout=30).status_code == 200
    assert stack.transcribe(ORDER, model="mini-whisper").status_code == 200
    assert "exited" not in stack.log("supervisord").split("entered RUNNING")[-1]


TEXT_QUIET = settings(QUIET, max_examples=80)
TEXT_FIELDS = (
    "best_of",
    "echo",
    "frequency_penalty",
    "logit_bias",
    "logprobs",
    "max_tokens",
    "n",
    "presence_penalty",
    "prompt",
    "seed",
    "stop",
    "stream",
    "stream_options",
    "suffix",
    "temperature",
    "top_p",
    "user",
    "bad_words",
    "top_k",
    "min_tokens",
    "repetition_penalty",
    "length_penalty",
    "messages",
    "top_logprobs",
    "max_completion_tokens",
    "response_format",
    "model",
)
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 6),
    st.integers(),
    st.floats(),
    st.floats(0, 2),
    st.text(max_size=20),
    st.sampled_from(["\ud800", "\0", "</s>", " "]),
)
TEXT_VALUES = st.one_of(
    SCALARS,
    st.lists(SCALARS, max_size=4),
    st.dictionaries(st.one_of(st.text(max_size=5), st.integers(-1, 2100).map(str)), SCALARS, max_size=4),
)
MESSAGES = st.lists(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["user", "assistant", "system", "tool"]), "content": TEXT_VALUES}
    ),
    max_size=3,
)


def judge_text(answer: httpx.Response) -> None:
    assert answer.status_code < 500, answer.text
    if answer.status_code >= 400:
        judge_refusal(answer)
    elif answer.headers["content-type"].startswith("text/event-stream"):
        assert answer.text.endswith("data: [DONE]\n\n"), answer.text
        assert '"error"' not in answer.text, answer.text
    else:
        assert answer.json()["choices"]


@TEXT_QUIET
@seed(SEED)
@given(
    fields=st.dictionaries(st.sampled_from(TEXT_FIELDS), TEXT_VALUES, max_size=4),
    messages=MESSAGES,
    model=st.sampled_from(["mini-gpt2", "mini-t5"]),
    route=st.sampled_from(["completions", "completions", "chat/completions"]),
)
def test_text_fields_at_random(
    text_stack: Stack, fields: dict[str, Any], messages: Any, model: str, route: str
) -> None:
    """Good requests with up to four fields of any value."""
    good: dict[str, Any] = (
        {"prompt": "On Monday"}
        if route == "completions"
        else {"messages": messages or [{"role": "user", "content": "On Monday"}]}
    )
    body = json.dumps({"model": model, "max_tokens": 4, **good, **fields})
    url, kind = f"{text_stack.url}/v1/{route}", {"content-type": "application/json"}
    judge_text(httpx.post(url, content=body, headers=kind, timeout=60))
