"""WebSocket /v1/realtime?intent=transcription: PCM16 in, words out while somebody speaks. Events are those of
OpenAI's transcription sessions.

Latency: a turn's final words come `silence_duration_ms` (500) after its last sound plus one transcription;
while it lasts, words that two looks in a row agree on come every PARTIAL seconds. Memory: a turn is at most
30 s, an uncommitted buffer LONGEST_BUFFER; when the engine falls behind, the socket is not read, and TCP
holds the sender back.
"""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing, suppress
from typing import Any

import numpy as np
import structlog
from fastapi import APIRouter, WebSocket, WebSocketDisconnect
from numpy.typing import NDArray
from openai.types.realtime import ConversationItemInputAudioTranscriptionCompletedEvent as Completed
from openai.types.realtime.conversation_item_input_audio_transcription_completed_event import (
    UsageTranscriptTextUsageDuration as Usage,
)
from starlette.types import Message

from conch.deployment import Pool

from ..audio.attempt import Options
from ..audio.languages import language_code
from ..audio.transcript import Transcript, joined
from ..audio.vad import RATE
from ..audio.windows import PauseCutter, TurnCutter, Window
from ..errors import ApiError, error_body, error_response
from ..keys import check_key
from ..services import Services, ServicesDep
from .pcm import Pcm16Decoder
from .session import Session

log = structlog.get_logger()
router = APIRouter()
Floats = NDArray[np.float32]

PARTIAL = 0.6  # seconds of new sound before another look at an unfinished turn
PIECE = RATE // 10
LONGEST_BUFFER = 120  # seconds that wait for a commit where the client decides
SHORTEST_COMMIT = 0.1
WAITING = 8  # events between the socket and the listener
LARGEST_EVENT = 64 * 1024  # characters of an event that brings no sound
LONGEST_ID = 512  # characters of an event's id, which errors repeat
FINALS = 4  # finished turns that wait for their words


def agreed(before: str, now: str) -> list[str]:
    """Words that two looks at a growing turn begin with; the last word of a look may still be half a word."""
    both = zip(before.split(), now.split()[:-1], strict=False)
    words = []
    for old, new in both:
        if old != new:
            break
        words.append(new)
    return words


class Listener:
    """One connection: events in, events out."""

    def __init__(self, socket: WebSocket, services: Services, pool: Pool) -> None:
        self.socket, self.services, self.pool = socket, services, pool
        self.session = Session()
        self.events: asyncio.Queue[dict[str, Any]] = asyncio.Queue(WAITING)
        self.finals: asyncio.Queue[asyncio.Task[tuple[str, dict[str, Any]]]] = asyncio.Queue()
        self.room = asyncio.Semaphore(FINALS)
        self.previous: str | None = None
        self.request_id = f"{socket.state.request_id}.{uuid.uuid4().hex[:8]}"
        self.looks = 0
        self.heard = 0  # samples since the session began
        self._restart()

    def _restart(self) -> None:
        """With an empty buffer, as the session says."""
        settings = self.session.audio.input
        self.begins, self.pending = self.heard, 0
        self.decoder = Pcm16Decoder(settings.format.rate)
        self.spoken = TurnCutter(settings.turn_detection.turns()) if settings.turn_detection else None
        self.buffer: Floats = np.zeros(0, np.float32)
        self._new_item()

    def _new_item(self) -> None:
        self.item, self.said, self.last, self.looked_at = f"item_{uuid.uuid4().hex[:20]}", list[str](), "", 0
        self.look: asyncio.Task[None] | None = None

    async def send(self, kind: str, **fields: Any) -> None:
        """One event to the client; nothing if it has gone, which the reading side notices."""
        with suppress(WebSocketDisconnect, RuntimeError):
            await self.socket.send_text(
                json.dumps({"type": kind, "event_id": f"event_{uuid.uuid4().hex[:20]}", **fields})
            )

    async def run(self) -> None:
        """Until the client goes. Reading stops while `events` is full: that is the back-pressure."""
        await self.send("session.created", session=self._described())
        workers = [asyncio.create_task(self._work()), asyncio.create_task(self._end())]
        try:
            while (message := await self._received())["type"] != "websocket.disconnect":
                await self.events.put(self._parsed(message.get("text") or ""))
        finally:
            waiting = [self.finals.get_nowait() for _ in range(self.finals.qsize())]
            left = [task for task in (*workers, *waiting, self.look) if task]
            for task in left:
                task.cancel()
            await asyncio.gather(*left, return_exceptions=True)

    async def _received(self) -> Message:
        """The next message; a connection that has been silent for too long is closed, since others wait for
        its place.
        """
        seconds = self.services.settings.realtime_idle_seconds
        try:
            return await asyncio.wait_for(self.socket.receive(), seconds)
        except TimeoutError:
            message = f"nothing was sent for {seconds:g} s; the session is closed, connect again"
            await self.send("error", error=error_body(ApiError(408, message, code="session_idle"))["error"])
            with suppress(WebSocketDisconnect, RuntimeError):
                await self.socket.close(1001, "idle")
            return {"type": "websocket.disconnect"}

    def _described(self) -> dict[str, Any]:
        described = self.session.model_dump()
        described["audio"]["input"]["transcription"]["model"] = self.pool.model_id
        return described

    @staticmethod
    def _parsed(text: str) -> dict[str, Any]:
        """An event. What is large may only be sound, a string in a flat object: 20 MB of lists would be
        gigabytes of Python's objects.
        """
        if len(text) > LARGEST_EVENT and ("[" in text or text.count("{") != 1 or text.count(",") > 16):
            return {"type": "too large"}
        with suppress(ValueError, RecursionError):
            if isinstance(event := json.loads(text), dict):
                return event
        return {"type": "not a JSON object"}

    async def _work(self) -> None:
        handlers = {
            "session.update": self._update,
            "input_audio_buffer.append": self._append,
            "input_audio_buffer.commit": self._commit,
            "input_audio_buffer.clear": self._clear,
        }
        while True:
            event = await self.events.get()
            try:
                if not (handler := handlers.get(str(event.get("type")))):
                    known = ", ".join(handlers)
                    raise ApiError(
                        400,
                        f"event type {str(event.get('type'))[:80]!r} is not known here; send {known}",
                        param="type",
                        code="invalid_value",
                    )
                await handler(event)
            except Exception as error:  # one event's failure is its own: the session goes on
                own = event.get("event_id")
                await self.send(
                    "error",
                    error={
                        **self._told(error),
                        "event_id": own[:LONGEST_ID] if isinstance(own, str) else None,
                    },
                )

    def _told(self, error: Exception) -> dict[str, str | None]:
        """What the client reads; the log has what only we may."""
        if not isinstance(error, ApiError):
            log.error("unexpected error", request_id=self.request_id, exc_info=error)
            error = ApiError(
                500,
                f"internal error; the gateway's log has it under request id {self.request_id}",
                code="internal_error",
            )
        return error_body(error)["error"]

    async def _update(self, event: dict[str, Any]) -> None:
        session = self.session.changed(event.get("session"))
        name = session.audio.input.transcription.model
        pool = self.services.pool(name, "transcription") if name else self.pool
        same = session.hears_as(self.session)
        if not same and len(self.buffer):
            message = "the buffer holds sound that was sent under the old settings; commit or clear it first"
            raise ApiError(400, message, param="session.audio.input", code="buffer_in_use")
        if not same and self.spoken and (windows := list(self.spoken.finish())):
            await self._finish(windows)  # the turn that was going on
        self.session, self.pool = session, pool
        if not same:
            self._restart()
        await self.send("session.updated", session=self._described())

    async def _append(self, event: dict[str, Any]) -> None:
        samples = self.decoder.feed(event.get("audio"))
        if self.spoken is None:
            if len(self.buffer) + len(samples) > LONGEST_BUFFER * RATE:
                raise ApiError(
                    400,
                    f"the buffer holds {LONGEST_BUFFER} s; commit or clear it",
                    param="audio",
                    code="buffer_full",
                )
            self.buffer = np.concatenate([self.buffer, samples])
            self._count(samples)
            return
        self._count(samples)
        for at in range(0, len(samples), PIECE):
            await self._listen(self.spoken, samples[at : at + PIECE])

    def _count(self, samples: Floats) -> None:
        self.heard += len(samples)
        self.pending += len(samples)

    async def _listen(self, spoken: TurnCutter, piece: Floats) -> None:
        """A tenth of a second: turns that began or ended in it, and another look if one is due."""
        speaking = spoken.speaking
        windows = await asyncio.to_thread(lambda: list(spoken.feed(piece)))
        if spoken.speaking and not speaking and not windows:
            await self.send(
                "input_audio_buffer.speech_started",
                audio_start_ms=(self.begins + spoken.at) * 1000 // RATE,
                item_id=self.item,
            )
        for window in windows:
            end = round((self.begins / RATE + window.start + len(window.wave) / RATE) * 1000)
            await self.send("input_audio_buffer.speech_stopped", audio_end_ms=end, item_id=self.item)
            await self._finish([window])
        if (
            spoken.speaking
            and len(spoken.kept) - self.looked_at >= PARTIAL * RATE
            and (self.look is None or self.look.done())
        ):
            self.looked_at = len(spoken.kept)
            self.look = asyncio.create_task(self._partial(self.item, spoken.kept))

    async def _partial(self, item: str, wave: Floats) -> None:
        """Tell what this look and the one before agree on."""
        with suppress(ApiError):  # the final words will come, or say why not
            now = (await self._transcribe([Window(wave, 0.0)], draft=True)).text
            words = agreed(self.last, now)
            if item == self.item and len(words) > len(self.said) and words[: len(self.said)] == self.said:
                fresh = (" " if self.said else "") + " ".join(words[len(self.said) :])
                self.said = words
                await self.send(
                    "conversation.item.input_audio_transcription.delta",
                    item_id=item,
                    content_index=0,
                    delta=fresh,
                )
            self.last = now

    async def _commit(self, _: dict[str, Any]) -> None:
        rest = self.decoder.flush()
        self._count(rest)
        if self.pending < SHORTEST_COMMIT * RATE:
            message = f"the buffer holds less than {SHORTEST_COMMIT * 1000:.0f} ms of sound; append first"
            raise ApiError(400, message, param="audio", code="input_audio_buffer_commit_empty")
        # No window: nobody spoke, and the item has no words.
        await self._finish(await asyncio.to_thread(self._pieces, rest))
        self._restart()

    def _pieces(self, rest: Floats) -> list[Window]:
        """What the buffer, or the turn that is going on, comes to."""
        cutter = self.spoken or PauseCutter()
        return [*cutter.feed(rest if self.spoken else np.concatenate([self.buffer, rest])), *cutter.finish()]

    async def _clear(self, _: dict[str, Any]) -> None:
        if self.look:
            self.look.cancel()
        self._restart()
        await self.send("input_audio_buffer.cleared")

    async def _finish(self, windows: Sequence[Window]) -> None:
        """Commit the item and ask for its words; with FINALS of them under way this waits, and so does the
        socket.
        """
        if self.look:
            self.look.cancel()
        await self.send("input_audio_buffer.committed", item_id=self.item, previous_item_id=self.previous)
        await self.room.acquire()
        self.finals.put_nowait(asyncio.create_task(self._final(self.item, windows)))
        self.previous, self.pending = self.item, 0
        self._new_item()

    async def _end(self) -> None:
        """Tell the words of finished items, in their order."""
        while True:
            kind, fields = await (await self.finals.get())
            self.room.release()
            await self.send(f"conversation.item.input_audio_transcription.{kind}", **fields)

    async def _final(self, item: str, windows: Sequence[Window]) -> tuple[str, dict[str, Any]]:
        try:
            transcript = await self._transcribe(windows)
        except Exception as error:  # the item fails, the session goes on
            return "failed", {"item_id": item, "content_index": 0, "error": self._told(error)}
        usage = Usage(seconds=round(sum(len(window.wave) for window in windows) / RATE, 3), type="duration")
        event = Completed(
            content_index=0,
            event_id="",
            item_id=item,
            transcript=transcript.text,
            type="conversation.item.input_audio_transcription.completed",
            usage=usage,
        )
        return "completed", event.model_dump(exclude_none=True, exclude={"type", "event_id"})

    async def _transcribe(self, windows: Sequence[Window], *, draft: bool = False) -> Transcript:
        wanted = self.session.audio.input.transcription
        language = language_code(wanted.language) if wanted.language else None
        options = Options(
            task="transcribe",
            language=language,
            prompt=wanted.prompt,
            temperature=0.0,
            timestamps=False,
            draft=draft,
        )
        self.looks += 1

        async def source() -> AsyncIterator[Window]:
            for window in windows:
                yield window

        async with aclosing(
            self.services.transcriber.transcribe(
                self.pool, source(), options, f"{self.request_id}-{self.looks}"
            )
        ) as parts:
            return joined([part async for part in parts])


@router.get("/v1/realtime", include_in_schema=False)
async def plain() -> None:
    """For those who come without an upgrade."""
    raise ApiError(
        426,
        "live sessions are WebSockets; connect to ws(s)://…/v1/realtime?intent=transcription",
        code="upgrade_required",
    )


@router.websocket("/v1/realtime")
async def realtime(socket: WebSocket, services: ServicesDep) -> None:
    """Live transcription. `model` in the query names the model; the only speech model of a deployment needs
    no name.
    """
    try:
        check_key(socket, services)
        if (intent := socket.query_params.get("intent", "transcription")) != "transcription":
            raise ApiError(
                400,
                f"intent={intent!r} is not served; use intent=transcription",
                param="intent",
                code="unsupported_value",
            )
        speech = [name for name, pool in services.pools.items() if "transcription" in pool.capabilities]
        name = socket.query_params.get("model") or (speech[0] if len(speech) == 1 else "")
        pool = services.pool(name, "transcription")
        with services.sessions():
            await socket.accept("realtime" if "realtime" in socket.scope.get("subprotocols", ()) else None)
            await Listener(socket, services, pool).run()
    except ApiError as error:
        await socket.send_denial_response(error_response(error))
