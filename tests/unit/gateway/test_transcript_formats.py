"""JSON formats and events of transcripts, held to the types of OpenAI's own client."""

from __future__ import annotations

import json
from typing import Any

import pytest
from openai import BaseModel
from openai.types.audio import (
    Transcription,
    TranscriptionTextDeltaEvent,
    TranscriptionTextDoneEvent,
    TranscriptionVerbose,
)

from gateway.audio.responses import delta, done, formatted
from speech.transcript import Segment, Transcript, Word

SPOKEN = Transcript(
    "Yes, no.",
    "en",
    2.5,
    (
        Segment(0.0, 1.0, "Yes,", (1, 2), -0.1, 0.01, log_probs=((b" Yes", -0.5),)),
        Segment(1.0, 2.5, "no.", (3,), -0.2, 0.0, window=0.5),
    ),
    (Word("Yes,", 0.0, 0.4), Word("no.", 1.0, 2.0)),
)


def known(read: Any) -> Any:
    """The client's object as JSON, without fields that its type does not have."""
    if isinstance(read, BaseModel):
        return {
            name: known(value)
            for name, value in read
            if name in type(read).model_fields and value is not None
        }
    return [known(one) for one in read] if isinstance(read, list) else read


@pytest.mark.parametrize("log_probs", [False, True])
def test_json(log_probs: bool) -> None:
    body = json.loads(bytes(formatted(SPOKEN, "json", (), "transcribe", log_probs=log_probs).body))
    assert known(Transcription.model_validate(body)) == body
    assert ("logprobs" in body) is log_probs


@pytest.mark.parametrize("granularities", [(), ("segment",), ("segment", "word")])
def test_verbose_json(granularities: tuple[str, ...]) -> None:
    body = json.loads(bytes(formatted(SPOKEN, "verbose_json", granularities, "transcribe").body))
    assert known(TranscriptionVerbose.model_validate(body)) == {
        name: value for name, value in body.items() if name != "task"
    }
    assert body["task"] == "transcribe"
    assert {f"{name}s" for name in granularities} == {"segments", "words"} & set(body)


@pytest.mark.parametrize("log_probs", [False, True])
def test_events(log_probs: bool) -> None:
    part = delta("Yes", SPOKEN, log_probs=log_probs)
    assert known(TranscriptionTextDeltaEvent.model_validate(part)) == part
    last = done(SPOKEN, log_probs=log_probs)
    assert known(TranscriptionTextDoneEvent.model_validate(last)) == last
