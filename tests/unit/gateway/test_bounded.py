"""What one request may cost the gateway, before anybody works on it."""

from __future__ import annotations

import time

import pytest
from pydantic import ValidationError

from conch.deployment import Pool
from conch.errors import ApiError
from gateway.realtime.connection import LARGEST_EVENT, parsed
from gateway.text.schema import ChatRequest, CompletionRequest, check

POOL = Pool("mini", "gpt2", (0,), {}, positions=512)


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({"logit_bias": {str(i): 1 for i in range(350_000)}}, "logit_bias has 350000 parts"),
        ({"logit_bias": {f"x{i}": 1 for i in range(350_000)}}, "logit_bias has 350000 parts"),
        ({f"unknown{i}": 1 for i in range(350_000)}, "fields"),
        ({"stop": ["a"] * 100_000}, "stop has 100000 parts"),
    ],
)
def test_large_bodies_are_refused_at_once(body: dict[str, object], says: str) -> None:
    """An error for each of a hundred thousand faults held the event loop for seconds."""
    started = time.monotonic()
    with pytest.raises(ValidationError, match=says):
        CompletionRequest.model_validate({"model": "m", "prompt": "a", **body})
    assert time.monotonic() - started < 1


def test_many_messages_are_refused() -> None:
    with pytest.raises(ValidationError, match="messages has 100000 parts"):
        ChatRequest.model_validate({"model": "m", "messages": [{"role": "user", "content": "a"}] * 100_000})


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
