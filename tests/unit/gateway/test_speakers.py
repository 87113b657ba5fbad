"""Fields, formats and references of transcripts with speakers. Whole requests: tests/stack."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import subprocess
import sys
import wave
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import webvtt
from openai.types.audio import TranscriptionDiarized, TranscriptionTextSegmentEvent
from starlette.testclient import TestClient

from conch.errors import ApiError
from gateway.audio.diarization import Diarizer, TritonVoices, known_voices
from gateway.audio.responses import formatted, speaker_segments
from gateway.audio.schema import parse_transcription
from gateway.audio.speakers import SpeakersWanted
from speech.media import blocks
from speech.speakers.model import Count
from speech.transcript import Segment, Transcript, Word

from .application import refuses
from .test_http import gateway

__all__ = ["gateway"]
SPOKEN = Transcript(
    "Yes & no. <b>",
    "en",
    2.5,
    (
        Segment(0.0, 1.0, "Yes & no.", (1,), -0.1, 0.0, speaker="Ann > Bo"),
        Segment(1.0, 2.5, "<b>", (), -0.1, 0.0, speaker="A"),
    ),
    (Word("Yes", 0.0, 0.4, "Ann > Bo"), Word("<b>", 1.0, 2.0, "A", overlap=True)),
)


def wanted(**fields: Any) -> SpeakersWanted | None:
    lists = {name: value if isinstance(value, list) else [value] for name, value in fields.items()}
    return parse_transcription({"model": ["m"], **lists}).speakers()


def test_what_asks_for_speakers() -> None:
    assert wanted() is None
    assert wanted(diarize="false", response_format="verbose_json") is None
    assert wanted(response_format="diarized_json") == SpeakersWanted(Count(), (), ())
    for form in ("verbose_json", "srt", "vtt", "diarized_json"):
        found = wanted(response_format=form, diarize="true", num_speakers="3")
        asked_by = "response_format" if form == "diarized_json" else "diarize"
        assert found == SpeakersWanted(Count(3, 3), (), (), asked_by)
    named = {"known_speaker_names[]": ["Ann"], "known_speaker_references[]": ["data:,"]}
    found = wanted(
        response_format="diarized_json", min_speakers="2", max_speakers="5", stream="true", **named
    )
    assert found == SpeakersWanted(Count(2, 5), ("Ann",), ("data:,",))


def test_diarized_json_is_the_sdks() -> None:
    body = json.loads(formatted(SPOKEN, "diarized_json", (), "transcribe").body)
    read = TranscriptionDiarized.model_validate(body)
    assert read.model_dump(exclude_none=True) == body
    assert [(one.id, one.speaker, one.text) for one in read.segments] == [
        ("seg_0", "Ann > Bo", "Yes & no."),
        ("seg_1", "A", "<b>"),
    ]
    assert [
        TranscriptionTextSegmentEvent.model_validate(one).speaker for one in speaker_segments(SPOKEN)
    ] == ["Ann > Bo", "A"]


def test_verbose_json_marks_words_and_segments() -> None:
    body = json.loads(formatted(SPOKEN, "verbose_json", ("segment", "word"), "transcribe").body)
    assert [segment["speaker"] for segment in body["segments"]] == ["Ann > Bo", "A"]
    assert [(word["speaker"], word.get("overlap")) for word in body["words"]] == [
        ("Ann > Bo", None),
        ("A", True),
    ]


def test_subtitles() -> None:
    text = bytes(formatted(SPOKEN, "vtt", (), "transcribe").body).decode()
    assert [caption.voice for caption in webvtt.from_string(text)][1] == "A"
    assert "<v Ann &gt; Bo>Yes &amp; no." in text
    assert b"\nAnn > Bo: Yes & no.\n" in formatted(SPOKEN, "srt", (), "transcribe").body


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"response_format": "diarized_json"}, "response_format"),
        ({"response_format": "srt", "diarize": "1"}, "diarize"),
    ],
)
def test_a_deployment_without_the_model_says_what_is_missing(
    gateway: TestClient, fields: dict[str, str], param: str
) -> None:
    file = ("a.wav", recording(np.zeros(16_000)))
    answer = gateway.post("/v1/audio/transcriptions", files={"file": file}, data={"model": "a", **fields})
    refuses(answer, param, "speakers added to MODEL_ID")


def recording(samples: Any) -> bytes:
    file = io.BytesIO()
    with wave.open(file, "wb") as made:
        made.setnchannels(1)
        made.setsampwidth(2)
        made.setframerate(16_000)
        made.writeframes(np.asarray(samples, "<i2").tobytes())
    return file.getvalue()


def data_url(content: bytes) -> str:
    return "data:audio/wav;base64," + base64.b64encode(content).decode()


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("https://example.org/a.wav", "is not a base64 data URL"),
        ("data:audio/wav,abc", "is not a base64 data URL"),
        ("data:audio/wav;base64,!!!", "is not valid base64"),
        (data_url(b"no sound"), "cannot be used: "),
        (data_url(recording(np.zeros(16_000))), "is 1.0 s long"),
        (data_url(recording(np.zeros(16_000 * 40))), "is longer than 10 s"),
        ("", "is not a base64 data URL"),
    ],
)
def test_references_that_cannot_be_read(url: str, said: str) -> None:
    nobody: Any = None  # no model is asked
    with pytest.raises(ApiError) as refused:
        asyncio.run(known_voices(TritonVoices(nobody, nobody, "a"), [url]))
    assert (refused.value.status, refused.value.param) == (400, "known_speaker_references[]")
    assert said in refused.value.message
    assert "(number 1)" in refused.value.message


@pytest.mark.slow
def test_a_gateway_loads_no_clustering_before_it_is_asked() -> None:
    loaded = "import gateway.app, sys; print('scipy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", loaded], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


class Silence:
    """A VoiceModel for which nobody speaks."""

    async def segment(self, rows: Any) -> Any:
        scores = np.full((len(rows), 589, 7), -10.0, np.float32)
        scores[:, :, 0] = 0.0
        return scores

    async def embed(self, rows: Any) -> Any:
        raise AssertionError("nobody speaks")


@pytest.mark.parametrize(
    ("seconds", "most", "message"), [(30, 20, "longer than 20 s"), (0, 20, "no audio samples")]
)
def test_what_the_second_way_through_a_file_finds_is_the_clients(
    tmp_path: Path, seconds: int, most: float, message: str
) -> None:
    """It may find it before the transcription does."""
    path = tmp_path / "a.wav"
    path.write_bytes(recording(np.zeros(16_000 * seconds)))
    model: Any = Silence()
    diarizer = Diarizer(model, SpeakersWanted(Count(), (), ()), np.empty((0, 192), np.float32))
    with pytest.raises(ApiError, match=message) as refused:
        asyncio.run(diarizer.speakers_of(blocks(path, max_seconds=most, time_limit=10)))
    assert (refused.value.status, refused.value.code) == (400, "invalid_file")


def test_fields_of_a_form_are_bounded_together(gateway: TestClient) -> None:
    answer = gateway.post(
        "/v1/audio/transcriptions",
        files={"file": ("a.wav", recording(np.zeros(16_000)))},
        data={"model": "a", "known_speaker_references[]": ["x" * (8 << 20)] * 5},
    )
    refuses(answer, "known_speaker_references[]", "besides the file are longer than")
