"""Live transcription over WebSocket, with the official SDK and by hand."""

from __future__ import annotations

import asyncio
import base64
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import httpx
import jiwer
import numpy as np
import openai
import pytest
import websockets
from scipy.signal import resample_poly

from .clients import wave
from .conftest import Stack

DONE = "conversation.item.input_audio_transcription.completed"
DELTA = "conversation.item.input_audio_transcription.delta"


def pieces(name: str, rate: int, silence: float = 1.0) -> list[str]:
    """A recording and a second of silence as base64 PCM16, a tenth of a second each."""
    sound = np.concatenate([wave(name), np.zeros(int(16000 * silence), np.float32)])
    samples = (np.clip(resample_poly(sound, rate, 16000), -1, 1) * 32767).astype("<i2")
    return [
        base64.b64encode(samples[at : at + rate // 10].tobytes()).decode()
        for at in range(0, len(samples), rate // 10)
    ]


@asynccontextmanager
async def session(stack: Stack, **audio_input: Any) -> AsyncIterator[Any]:
    """A connection by the SDK, configured."""
    client = openai.AsyncOpenAI(base_url=f"{stack.url}/v1", api_key="none")
    async with client.realtime.connect(
        model="mini-whisper", extra_query={"intent": "transcription"}
    ) as connection:
        assert (await connection.recv()).type == "session.created"
        await connection.session.update(
            session={
                "type": "transcription",
                "audio": {"input": {"transcription": {"language": "en"}, **audio_input}},
            }
        )
        assert (await connection.recv()).type == "session.updated"
        yield connection


async def test_speech_comes_back_while_it_is_spoken(stack: Stack, recordings: dict[str, Any]) -> None:
    """At the pace of speech: turns are found, words come before their turn ends, and all of it is right.
    Final words come within two seconds.
    """
    async with session(stack, format={"type": "audio/pcm", "rate": 24000}) as connection:
        started, events = time.monotonic(), list[tuple[float, Any]]()

        async def feed() -> None:
            for n, piece in enumerate(pieces("demo.flac", 24000)):
                await connection.input_audio_buffer.append(audio=piece)
                await asyncio.sleep(max(0.0, started + 0.1 * (n + 1) - time.monotonic()))

        feeding = asyncio.create_task(feed())
        while sum(event.type == DONE for _, event in events) < 3:
            events.append((time.monotonic() - started, await connection.recv()))
        await feeding
    finals = {event.item_id: event.transcript for _, event in events if event.type == DONE}
    assert jiwer.wer(recordings["demo.flac"]["text"], " ".join(finals.values())) <= 0.05
    kinds = [event.type for _, event in events]
    assert kinds.index(DELTA) < kinds.index("input_audio_buffer.speech_stopped") < kinds.index(DONE)
    for item, transcript in finals.items():
        assert transcript.startswith(
            "".join(
                event.delta for _, event in events if event.type == DELTA and event.item_id == item
            ).rstrip(" .,")
        )
    stops = {event.item_id: at for at, event in events if event.type == "input_audio_buffer.speech_stopped"}
    waits = [at - stops[event.item_id] for at, event in events if event.type == DONE]
    print(f"\nfinal words {max(waits):.2f} s after the end of a turn was noticed")
    assert max(waits) < 2.0


async def test_a_client_may_commit_itself(stack: Stack, recordings: dict[str, Any]) -> None:
    """Without turn detection the buffer waits for a commit; an empty one is an error, clear empties it, and a
    minute is not too long.
    """
    async with session(stack, turn_detection=None, format={"type": "audio/pcm", "rate": 16000}) as connection:
        await connection.input_audio_buffer.commit()
        assert (await connection.recv()).error.code == "input_audio_buffer_commit_empty"
        await connection.input_audio_buffer.append(audio=pieces("demo.flac", 16000)[0])
        await connection.input_audio_buffer.clear()
        assert (await connection.recv()).type == "input_audio_buffer.cleared"
        for piece in pieces("minute.wav", 16000):
            await connection.input_audio_buffer.append(audio=piece)
        await connection.input_audio_buffer.commit()
        kinds = list[str]()
        while (done := await connection.recv()).type != DONE:
            kinds.append(done.type)
        assert set(kinds) <= {DELTA, "input_audio_buffer.committed"}
        assert jiwer.wer(recordings["minute.wav"]["text"], done.transcript) <= 0.05
        assert done.usage.seconds == pytest.approx(65, abs=2)


def changed(**audio_input: Any) -> dict[str, Any]:
    return {"type": "session.update", "session": {"audio": {"input": audio_input}}}


BAD = [
    ("no json", "type"),
    ({"type": "response.create"}, "type"),
    ({"type": "input_audio_buffer.append"}, "audio"),
    ({"type": "input_audio_buffer.append", "audio": base64.b64encode(bytes(1_500_000)).decode()}, "audio"),
    ({"type": ["x"]}, "type"),
    ({"type": "session.update"}, "session"),
    ({"type": "session.update", "session": {"type": "realtime"}}, "session.type"),
    (changed(format={"type": "audio/opus"}), "session.audio.input.format"),
    (changed(transcription={"model": "nothing"}), "session.audio.input.transcription.model"),
    ({"type": "session.update", "session": {"audio": {"output": {}}}}, "session.audio.output"),
    ("[" * 100_000, "type"),
    ('{"type": "\\ud800"}', "type"),
]


async def test_bad_events_are_named_and_the_session_lives(stack: Stack) -> None:
    """Each is answered by an error event in OpenAI's shape that names the field and the event; then speech is
    served as before.
    """
    async with websockets.connect(
        f"{stack.url.replace('http', 'ws')}/v1/realtime?intent=transcription"
    ) as socket:
        assert json.loads(await socket.recv())["type"] == "session.created"
        await socket.send(b"\x00\x01")
        assert json.loads(await socket.recv())["error"]["param"] == "type"
        for event, param in BAD:
            await socket.send(event if isinstance(event, str) else json.dumps({**event, "event_id": "mine"}))
            answer = json.loads(await socket.recv())
            assert answer["type"] == "error", event
            assert answer["error"]["param"] == param, answer
            assert answer["error"]["event_id"] == (None if isinstance(event, str) else "mine")
        for update in (
            {"turn_detection": None, "format": {"rate": 16000}},
            {"turn_detection": {}, "format": {"rate": 24000}},
        ):
            await socket.send(json.dumps(changed(**update)))
            assert json.loads(await socket.recv())["type"] == "session.updated"
            if update["turn_detection"] is None:
                silence = base64.b64encode(bytes(32000)).decode()
                await socket.send(json.dumps({"type": "input_audio_buffer.append", "audio": silence}))
                await socket.send(json.dumps({"type": "input_audio_buffer.commit"}))
                kinds = [json.loads(await socket.recv())["type"] for _ in range(2)]
                assert kinds == ["input_audio_buffer.committed", DONE], "silence has no words"
        for piece in pieces("order.wav", 24000):
            await socket.send(json.dumps({"type": "input_audio_buffer.append", "audio": piece}))
        while (answer := json.loads(await socket.recv()))["type"] != DONE:
            assert answer["type"] != "error"
        assert answer["transcript"]


@pytest.mark.parametrize(("query", "status"), [("model=nothing", 404), ("intent=conversation", 400)])
async def test_refused_before_the_upgrade(stack: Stack, query: str, status: int) -> None:
    """The handshake itself is refused, with a body in OpenAI's shape."""
    with pytest.raises(websockets.InvalidStatus) as error:
        await websockets.connect(f"{stack.url.replace('http', 'ws')}/v1/realtime?{query}")
    assert error.value.response.status_code == status
    assert json.loads(error.value.response.body)["error"]["message"]


def test_a_plain_request_is_told_to_upgrade(stack: Stack) -> None:
    """A browser's address bar, say."""
    answer = httpx.get(f"{stack.url}/v1/realtime")
    assert (answer.status_code, answer.json()["error"]["code"]) == (426, "upgrade_required")


async def test_a_sender_faster_than_the_engine_is_held_back(stack: Stack, recordings: dict[str, Any]) -> None:
    """Four minutes pushed at once: nothing is lost, and every turn is answered in its order."""
    async with session(
        stack,
        format={"type": "audio/pcm", "rate": 16000},
        turn_detection={"type": "server_vad", "silence_duration_ms": 300},
    ) as connection:
        sound = pieces("minute.wav", 16000) * 4

        async def push() -> None:
            for piece in sound:
                await connection.input_audio_buffer.append(audio=piece)

        pushing, items, texts = asyncio.create_task(push()), list[str](), list[str]()
        with suppress(TimeoutError):  # nothing for ten seconds: that was all
            while True:
                event = await asyncio.wait_for(connection.recv(), 10)
                assert event.type != "error"
                if event.type == "input_audio_buffer.committed":
                    items.append(event.item_id)
                elif event.type == DONE:
                    assert event.item_id == items[len(texts)]
                    texts.append(event.transcript)
        assert pushing.done()
        assert len(texts) == len(items) > 40
    assert jiwer.wer(" ".join([recordings["minute.wav"]["text"]] * 4), " ".join(texts)) <= 0.1


async def test_openais_guide_as_it_stands(stack: Stack, recordings: dict[str, Any]) -> None:
    """A transcription session of today's guide: no model in the address, telephone sound, turns that the
    client ends, and words while the sound arrives.
    """
    client = openai.AsyncOpenAI(base_url=f"{stack.url}/v1", api_key="none")
    secret = await client.realtime.client_secrets.create(session={"type": "transcription"})
    assert secret.value.startswith("ek_")
    client = openai.AsyncOpenAI(base_url=f"{stack.url}/v1", api_key=secret.value)
    async with client.realtime.connect(extra_query={"intent": "transcription"}) as connection:
        assert (await connection.recv()).type == "session.created"
        await connection.session.update(
            session={
                "type": "transcription",
                "audio": {
                    "input": {
                        "format": {"type": "audio/pcm", "rate": 24000},
                        "noise_reduction": {"type": "near_field"},
                        "transcription": {
                            "model": "gpt-realtime-whisper",
                            "languages": ["en", "es"],
                            "keywords": ["umbrellas"],
                            "delay": "minimal",
                        },
                        "turn_detection": None,
                    }
                },
                "include": ["item.input_audio_transcription.logprobs"],
            }
        )
        assert (await connection.recv()).type == "session.updated"
        events = list[Any]()

        async def listen() -> None:
            while not events or events[-1].type != DONE:
                events.append(await connection.recv())

        listening = asyncio.create_task(listen())
        for piece in pieces("demo.flac", 24000):
            await connection.input_audio_buffer.append(audio=piece)
            await asyncio.sleep(0.1)
        await connection.input_audio_buffer.commit()
        await listening
    kinds = [event.type for event in events]
    assert kinds.index(DELTA) < kinds.index("input_audio_buffer.committed")
    done, text = events[-1], recordings["demo.flac"]["text"]
    assert jiwer.wer(text, done.transcript) <= 0.05
    assert jiwer.wer(text, "".join(event.delta for event in events if event.type == DELTA)) <= 0.3
    assert [row.code for row in done.languages] == ["en"]
    assert "".join(row.token for row in done.logprobs).strip() == done.transcript
