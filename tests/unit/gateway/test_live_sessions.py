"""The configuration of live sessions as clients write it, G.711, and client secrets."""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import Mock

import numpy as np
import pytest

from conch.errors import ApiError
from gateway.keys import carried, issue
from gateway.realtime.connection import LiveConnection
from gateway.realtime.listener import LONGEST_BUFFER, RATE, SILENCE_KEPT, LiveListener, Uncommitted
from gateway.realtime.pcm import TABLES, SoundDecoder
from gateway.realtime.session import Session, of_beta
from gateway.realtime.words import Item, TurnWords
from speech.windows import Window


def changed(*before: dict[str, Any], **audio_input: Any) -> tuple[Any, list[ApiError]]:
    """What a session takes for its input after these changes, one after the other, and what it refuses of
    the last.
    """
    session, refused = Session(), list[ApiError]()
    for change in (*before, audio_input):
        session, refused = session.changed({"type": "transcription", "audio": {"input": change}})
    return session.audio.input, refused


def test_the_present_guide(tmp_path: Path) -> None:
    """Every field of OpenAI's guide to transcription sessions (openai 3.52.0, types/realtime)."""
    update = {
        "type": "transcription",
        "audio": {
            "input": {
                "format": {"type": "audio/pcm", "rate": 24000},
                "noise_reduction": {"type": "near_field", "strength": 0.5},
                "transcription": {
                    "model": "gpt-realtime-whisper",
                    "languages": ["en", "de-AT"],
                    "keywords": ["Conch"],
                    "prompt": "",
                    "delay": "minimal",
                },
                "turn_detection": {"type": "semantic_vad", "eagerness": "high", "create_response": False},
            }
        },
        "include": ["item.input_audio_transcription.logprobs"],
    }
    session, refused = Session().changed(update)
    assert refused == []
    assert session.audio.input.turn_detection.turns().silence == 0.5
    assert session.include
    assert session.audio.input.transcription.delay == "minimal"


@pytest.mark.parametrize("name", ["noise_reduction", "transcription", "format", "turn_detection"])
def test_null_is_no_error(name: str) -> None:
    found, refused = changed(**{name: None})
    assert refused == []
    assert (getattr(found, name) is None) is (name in ("noise_reduction", "turn_detection"))
    session, refused = Session().changed({"include": None})
    assert (session.include, refused) == ((), [])


def test_turn_detection_of_another_kind_keeps_nothing_of_the_old() -> None:
    found, refused = changed(turn_detection={"type": "semantic_vad"})
    assert (found.turn_detection.type, refused) == ("semantic_vad", [])
    found, refused = changed(format={"type": "audio/pcmu"})
    assert (found.format.rate, refused) == (8000, [])


def test_the_client_commits_under_names_of_models_without_turn_detection() -> None:
    """Unless it asks for turns, at once or before."""
    for model in ("gpt-realtime-whisper", "gpt-live-transcribe"):
        named, turns = {"transcription": {"model": model}}, {"turn_detection": {"type": "server_vad"}}
        found, refused = changed(**named)
        assert (found.turn_detection, refused) == (None, [])
        english, back = {"model": model, "language": "en"}, {"model": "whisper-1"}
        assert changed(**named, **turns)[0].turn_detection is not None
        assert changed({"turn_detection": {"type": "semantic_vad"}}, **named)[0].turn_detection is not None
        assert changed(named | turns, transcription=english)[0].turn_detection is not None
        assert changed(named, transcription=back)[0].turn_detection is not None
    assert changed(transcription={"model": "gpt-live-transcribe-2026-10-01"})[0].turn_detection is None
    assert changed(transcription={"model": "gpt-transcribe"})[0].turn_detection is not None
    for odd in (["x"], {}, 5):
        assert changed(transcription={"model": odd})[1][0].param == "session.audio.input.transcription.model"


def test_of_a_silence_the_last_seconds_wait_for_a_commit() -> None:
    """Any length of it is no error, in pieces of any size; what was spoken stays whole."""
    for size in (RATE // 10, RATE // 1000):
        held, piece = Uncommitted(), np.ones(size, np.float32)
        for _ in range(12_000):
            held.add(0 * piece, speaking=False)
        assert len(held) == SILENCE_KEPT * RATE
        held.add(piece, speaking=True)
        for _ in range(12_000):
            held.add(0 * piece, speaking=False)
        assert (len(held.wave), held.wave.sum()) == ((2 * SILENCE_KEPT) * RATE + len(piece), len(piece))
        assert len(held) == len(held.wave)


def test_a_full_buffer_takes_nothing_of_an_event() -> None:
    """The error names the field; a commit makes room."""
    session, _ = Session().changed({"audio": {"input": {"turn_detection": None}}})
    listener = LiveListener(cast(Any, None), Mock(), Mock(), session)
    listener.buffer.add(np.zeros(LONGEST_BUFFER * RATE, np.float32), speaking=True)
    silence = base64.b64encode(bytes(4800)).decode()
    with pytest.raises(ApiError, match="300 s of sound; commit or clear it") as error:
        asyncio.run(listener._append({"audio": silence}))
    assert (error.value.param, listener.pending, len(listener.buffer)) == ("audio", 0, 300 * RATE)


def test_the_edges_of_turn_detection() -> None:
    """All that OpenAI's reference calls a threshold or a silence."""
    for edge in ({"threshold": 0.0}, {"threshold": 1.0}, {"silence_duration_ms": 0}):
        assert changed(turn_detection={"type": "server_vad", **edge})[1] == []


def test_an_idle_connection_is_closed_without_an_error() -> None:
    """Clients give up after an error event, and connect again after a close."""
    told: list[str] = []

    async def never() -> None:
        await asyncio.sleep(60)

    async def send_text(text: str) -> None:
        told.append(text)

    async def close(code: int, reason: str) -> None:
        told.append(f"{code} {reason}")

    state = SimpleNamespace(request_id="r")
    socket: Any = SimpleNamespace(state=state, receive=never, send_text=send_text, close=close)
    message = asyncio.run(LiveConnection(socket, 0.01).received())
    assert message["type"] == "websocket.disconnect"
    assert told == ["1001 nothing was sent for 0.01 s; connect again"]


def test_what_is_refused_is_named_and_the_rest_holds() -> None:
    session, refused = Session().changed(
        {
            "type": "transcription",
            "audio": {
                "input": {
                    "transcription": {"language": "xx", "prompt": "<|en|>", "delay": "high"},
                    "turn_detection": {"type": "server_vad", "threshold": 7, "silence_duration_ms": 900},
                    "frobnicate": 1,
                }
            },
        }
    )
    assert {error.param for error in refused} == {
        "session.audio.input.transcription.language",
        "session.audio.input.transcription.prompt",
        "session.audio.input.turn_detection.threshold",
        "session.audio.input.frobnicate",
    }
    assert session.audio.input.transcription.delay == "high"
    assert session.audio.input.turn_detection is not None
    assert session.audio.input.turn_detection.turns().silence == 0.9


DEEP: Any = {}
for _ in range(2000):
    DEEP = {"audio": DEEP}


@pytest.mark.parametrize(
    "update", ["x", None, [], {"type": "realtime"}, {"audio": "x"}, {"audio": {"input": []}}, DEEP]
)
def test_rubbish_changes_nothing(update: Any) -> None:
    try:
        session, refused = Session().changed(update)
    except ApiError:
        return
    assert refused
    assert session == Session()


def test_the_betas_form() -> None:
    update = of_beta(
        {
            "input_audio_format": "g711_ulaw",
            "input_audio_transcription": {"model": "whisper-1", "language": "en"},
            "turn_detection": None,
            "input_audio_noise_reduction": {"type": "far_field"},
            "include": ["item.input_audio_transcription.logprobs"],
        }
    )
    session, refused = Session().changed(update)
    assert refused == []
    assert session.audio.input.format.type == "audio/pcmu"
    assert session.audio.input.turn_detection is None
    assert session.include


def test_g711() -> None:
    """Silence, the extremes, and symmetry of both laws (ITU-T G.711); a tone survives with 30 dB at least."""
    mu, a = TABLES["audio/pcmu"], TABLES["audio/pcma"]
    assert (mu[0xFF], mu[0x7F], mu[0x80], mu[0x00]) == (0, 0, 32124, -32124)
    assert (a[0xD5], a[0x55], a[0xAA], a[0x2A]) == (8, -8, 32256, -32256)
    tone = 0.5 * np.sin(2 * np.pi * 440 * np.arange(8000) / 8000)
    for kind, table in TABLES.items():
        codes = np.abs(table.astype(np.int32)[None] - (tone * 32767).astype(np.int32)[:, None]).argmin(1)
        decoder = SoundDecoder(kind, 8000)
        found = np.concatenate(
            [decoder.feed(base64.b64encode(codes.astype(np.uint8)).decode()), decoder.flush()]
        )
        expected = 0.5 * np.sin(2 * np.pi * 440 * np.arange(16000) / 16000)
        noise = found[500:15500] - expected[500:15500]
        assert 10 * np.log10(np.square(expected).mean() / np.square(noise).mean()) > 30


@pytest.mark.parametrize(
    ("kind", "audio"), [("audio/pcm", "AA=="), ("audio/pcm", "?"), ("audio/pcmu", ""), ("audio/pcm", 5)]
)
def test_sound_that_is_none(kind: str, audio: Any) -> None:
    with pytest.raises(ApiError) as refused:
        SoundDecoder(kind, 24000).feed(audio)
    assert refused.value.param == "audio"


def connection(secret: str, path: str, uri: str = "") -> Any:
    headers = {"authorization": f"Bearer {secret}", "x-conch-uri": uri}
    return SimpleNamespace(headers=headers, scope={"path": path})


async def test_looks_at_a_dropped_turn_end() -> None:
    """None is asked for any more, and no word of it is told."""
    asked, told = [], []

    async def transcribe(*_: Any, **__: Any) -> AsyncIterator[Any]:
        asked.append(None)
        await asyncio.sleep(0.01)
        yield SimpleNamespace(text="words of a turn")

    async def send(*_: Any, **fields: Any) -> None:
        told.append(fields)

    speaker: Any = SimpleNamespace(send=send, request_id="a")
    words = TurnWords(speaker, cast("Any", SimpleNamespace(transcribe=transcribe)))
    item = Item()
    for _ in range(6):
        words.settle(item, Window(np.zeros(8, np.float32), 0.0), Mock())
    await asyncio.sleep(0)
    item.drop_looks()
    await asyncio.wait(item.looks)
    assert len(asked) <= 1
    assert told == []


def test_client_secrets_open_live_sessions_alone_and_not_for_ever() -> None:
    services: Any = SimpleNamespace(keys=(b"one", b"two"))
    good = issue(services, f'{{"expires": {time.time() + 60}}}')
    assert carried(connection(good, "/v1/realtime"), services)
    assert carried(connection(good, "/auth", "/v1/realtime?model=a"), services)
    assert not carried(connection(good, "/v1/models"), services)
    assert not carried(connection(good, "/auth", "/v1/files"), services)
    assert not carried(connection(good[:-1] + "10"[good[-1] == "1"], "/v1/realtime"), services)
    assert not carried(connection(issue(services, '{"expires": 5}'), "/v1/realtime"), services)
    other: Any = SimpleNamespace(keys=(b"three",))
    assert not carried(connection(good, "/v1/realtime"), other)
    for rubbish in ("ek_", "ek_.", "ek_a.b", "", "ek_%%%.x", "ek_x.é"):
        assert not carried(connection(rubbish, "/v1/realtime"), services)
