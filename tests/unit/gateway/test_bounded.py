"""What one request may cost the gateway, before anybody works on it."""

from __future__ import annotations

import time

import pytest
from pydantic import BaseModel, ValidationError

from conch.deployment import Pool
from conch.errors import ApiError
from gateway.realtime.connection import LARGEST_EVENT, parsed
from gateway.text.schema import ChatRequest, CompletionRequest, check

USER = {"role": "user", "content": "a"}
POOL = Pool("mini", "gpt2", (0,), {}, positions=512)


@pytest.mark.parametrize(
    ("form", "body", "says"),
    [
        (
            CompletionRequest,
            {"logit_bias": {str(i): 1 for i in range(350_000)}},
            "logit_bias has 350000 parts",
        ),
        (
            CompletionRequest,
            {"logit_bias": {f"x{i}": 1 for i in range(350_000)}},
            "logit_bias has 350000 parts",
        ),
        (CompletionRequest, {f"unknown{i}": 1 for i in range(350_000)}, "fields"),
        (CompletionRequest, {"prompt": [1] * 100_000 + [None]}, "prompt.list"),
        (CompletionRequest, {"bad_words": [None] * 100_000}, "bad_words has 100000 parts"),
        *[(CompletionRequest, {"stop": [one] * 100_000}, "stop has 100000 parts") for one in ("a", 1)],
        *[(ChatRequest, {"messages": [one] * 100_000}, "messages has 100000 parts") for one in (USER, {})],
    ],
)
def test_large_bodies_are_refused_at_once(form: type[BaseModel], body: dict[str, object], says: str) -> None:
    """An error for each of a hundred thousand faults held the event loop for seconds."""
    started = time.monotonic()
    with pytest.raises(ValidationError, match=says) as refused:
        form.model_validate({"model": "m", "prompt": "a", **body})
    assert time.monotonic() - started < 1
    assert refused.value.error_count() < 10


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"stop": "a" * 1001}, "stop"),
        ({"stop": ["a", "b" * 4_000_000]}, "stop"),
        ({"bad_words": ["a" * 100] * 999}, "bad_words"),
    ],
)
def test_words_have_an_end(fields: dict[str, object], param: str) -> None:
    """They are searched for after every token."""
    form = CompletionRequest.model_validate({"model": "m", "prompt": "a", **fields})
    with pytest.raises(ApiError) as caught:
        check(form, 1, 16, POOL)
    assert caught.value.param == param


def test_large_live_events_are_sound_only() -> None:
    """A message of 20 MB of lists would be gigabytes of Python's objects."""
    sound = '{"type": "input_audio_buffer.append", "audio": "' + "A" * LARGEST_EVENT + '"}'
    assert parsed(sound)["type"] == "input_audio_buffer.append"
    for text in (
        '{"type": "x", "a": ' + "[" * LARGEST_EVENT,
        '{"a": ' * LARGEST_EVENT,
        '{"a":1' + ',"a":1' * LARGEST_EVENT + "}",
    ):
        assert parsed(text)["type"] == "too large"
    assert parsed("[1]")["type"] == "not a JSON object"
