"""What a live session receives: its settings, its audio, and the turns that the audio is cut into."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conch.deployment import Pool
from conch.errors import ApiError, invalid
from conch.tasks import end
from speech.cutters import PauseCutter, TurnCutter
from speech.vad import RATE, TurnDetection
from speech.windows import Window

from ..audio.languages import check_languages
from ..audio.schema import spoken as languages_of
from ..services import Services
from .connection import LiveConnection, parsed
from .pcm import SoundDecoder
from .session import PATH, Session, Transcription, of_beta
from .words import Item, TurnWords, WantedTranscript

Floats = NDArray[np.float32]

PIECE = RATE // 10
PAUSE = 0.5  # seconds of silence, after which words of sound that is not committed are final enough
LONGEST_SESSION = 3600  # seconds; nginx ends a connection that is silent for so long
LONGEST_BUFFER = 300  # seconds that wait for a commit where the client decides, after which nothing is taken
SILENCE_KEPT = 5  # seconds of each silence that wait with it
SHORTEST_COMMIT = 0.1
WAITING = 8  # events between the socket and the listener


class Uncommitted:
    """Audio that waits for the client's commit. Only the last SILENCE_KEPT seconds of a silence are kept, so
    that a client may send silence as long as it likes.
    """

    def __init__(self) -> None:
        self.spoken, self.silent = list[Floats](), deque[Floats]()
        self.samples = self.still = 0  # in all, and in `silent`

    def __len__(self) -> int:
        """Return its length in samples."""
        return self.samples

    def add(self, piece: Floats, *, speaking: bool) -> None:
        """Append audio, with or without speech."""
        self.samples += len(piece)
        self.silent.append(piece)
        self.still += len(piece)
        if speaking:
            self.spoken += self.silent
            self.silent.clear()
            self.still = 0
        while self.still > SILENCE_KEPT * RATE:
            dropped = len(self.silent.popleft())
            self.still -= dropped
            self.samples -= dropped

    @property
    def wave(self) -> Floats:
        """Return all of it."""
        return np.concatenate([*self.spoken, *self.silent, np.zeros(0, np.float32)])


class LiveListener:
    """One session: events in, events out."""

    def __init__(
        self, connection: LiveConnection, services: Services, pool: Pool, session: Session | None = None
    ) -> None:
        self.connection, self.services, self.pool = connection, services, pool
        self.session = session or Session()
        self.words = TurnWords(connection, services.transcriber)
        self.events: asyncio.Queue[dict[str, Any]] = asyncio.Queue(WAITING)
        self.previous: str | None = None
        self.received_samples = 0  # samples since the session began
        self.id, self.expires = f"sess_{uuid.uuid4().hex[:20]}", int(time.time()) + LONGEST_SESSION
        self.item = Item()
        self._restart()

    def _restart(self) -> None:
        """Start again with an empty buffer and the session's settings."""
        settings = self.session.audio.input
        self.begins, self.pending = self.received_samples, 0
        self.decoder = SoundDecoder(settings.format.type, settings.format.rate)
        detection = settings.turn_detection
        self.spoken = TurnCutter(detection.turns()) if detection else None
        # Where the client commits, words are looked for from pause to pause all the same.
        self.received_so_far = TurnCutter(TurnDetection(silence=PAUSE))
        self.buffer = Uncommitted()
        self.item.drop_looks()
        self.item = Item()

    @property
    def wanted(self) -> WantedTranscript:
        """Return what the session requests now."""
        session = self.session
        return WantedTranscript(self.pool, session.audio.input.transcription, log_probs=bool(session.include))

    async def run(self) -> None:
        """Run until the client disconnects. Reading stops while `events` is full: the back-pressure."""
        await self.connection.send("session.created", session=self._described())
        workers = [asyncio.create_task(self._work()), asyncio.create_task(self.words.tell())]
        try:
            while (message := await self.connection.received())["type"] != "websocket.disconnect":
                await self.events.put(parsed(message.get("text") or ""))
        finally:
            await end([*workers, *self.words.left(), *self.item.looks])

    def _described(self) -> dict[str, Any]:
        described = self.session.model_dump(mode="json")
        described["audio"]["input"]["transcription"]["model"] = self.pool.model_id
        own = {"id": self.id, "object": "realtime.transcription_session", "expires_at": self.expires}
        return {**own, **described}

    async def _work(self) -> None:
        handlers = {
            "session.update": self._update,
            "transcription_session.update": self._update,
            "input_audio_buffer.append": self._append,
            "input_audio_buffer.commit": self._commit,
            "input_audio_buffer.clear": self._clear,
        }
        while True:
            event = await self.events.get()
            try:
                if not (handler := handlers.get(str(event.get("type")))):
                    known = ", ".join(handlers)
                    raise invalid(
                        "type", f"event type {str(event.get('type'))[:80]!r} is unknown; send {known}"
                    )
                await handler(event)
            except Exception as error:  # noqa: BLE001  # one event's failure is its own: the session goes on
                await self.connection.fail(error, event)

    async def _update(self, event: dict[str, Any]) -> None:
        beta = event["type"] == "transcription_session.update"
        update = event.get("session")
        session, refused = self.session.changed(of_beta(update) if beta else update, self._judge)
        for error in refused:
            await self.connection.fail(error, event)
        if refused and session == self.session:
            return
        pool = self._pool(session.audio.input.transcription)
        same = session.hears_as(self.session)
        if not same and len(self.buffer):
            message = "the buffer holds sound that was sent under the old settings; commit or clear it first"
            raise ApiError(400, message, param="session.audio.input", code="buffer_in_use")
        if not same and self.spoken and (windows := list(self.spoken.finish())):
            await self._finish(windows)  # the turn that was going on
        self.session, self.pool = session, pool
        if not same:
            self._restart()
        kind = "transcription_session.updated" if beta else "session.updated"
        await self.connection.send(kind, session=self._described())

    def _pool(self, wanted: Transcription) -> Pool:
        return self.services.pool(wanted.model, "transcription") if wanted.model else self.pool

    def _judge(self, wanted: Transcription) -> None:
        """Check that the model is served here and supports the languages."""
        try:
            pool = self._pool(wanted)
        except ApiError as error:
            raise ApiError(error.status, error.message, param=f"{PATH}model", code=error.code) from error
        language, languages = languages_of(wanted.language, wanted.languages)
        check_languages(pool, language, languages, f"{PATH}{'languages' if languages else 'language'}")

    async def _append(self, event: dict[str, Any]) -> None:
        samples = self.decoder.feed(event.get("audio"))
        if self.spoken is None:
            if len(self.buffer) >= LONGEST_BUFFER * RATE:
                message = f"the buffer holds {LONGEST_BUFFER} s of sound; commit or clear it"
                raise ApiError(400, message, param="audio", code="buffer_full")
            for at in range(0, len(samples), PIECE):
                await self._look_ahead(samples[at : at + PIECE])
            self._count(samples)
            return
        self._count(samples)
        for at in range(0, len(samples), PIECE):
            await self._listen(self.spoken, samples[at : at + PIECE])

    def _count(self, samples: Floats) -> None:
        self.received_samples += len(samples)
        self.services.metrics.audio.labels(self.pool.model_id).inc(len(samples) / RATE)
        self.pending += len(samples)

    async def _listen(self, spoken: TurnCutter, piece: Floats) -> None:
        """Process a tenth of a second: turns that started or ended in it, and another partial transcription
        if due.
        """
        speaking = spoken.speaking
        windows = await asyncio.to_thread(list, spoken.feed(piece))
        if spoken.speaking and not speaking and not windows:
            await self.connection.send(
                "input_audio_buffer.speech_started",
                audio_start_ms=(self.begins + spoken.at) * 1000 // RATE,
                item_id=self.item.id,
            )
        for window in windows:
            end = round((self.begins / RATE + window.start + len(window.wave) / RATE) * 1000)
            await self.connection.send(
                "input_audio_buffer.speech_stopped", audio_end_ms=end, item_id=self.item.id
            )
            await self._finish([window])
        if spoken.speaking and self.item.due(len(spoken.kept), self.wanted.delay):
            self.words.look(self.item, spoken.kept, self.wanted)

    async def _look_ahead(self, piece: Floats) -> None:
        """Transcribe uncommitted audio from pause to pause, and send the words as they are found."""
        ahead = self.received_so_far
        windows = await asyncio.to_thread(list, ahead.feed(piece))
        for window in windows:
            if window.speech:
                self.words.settle(self.item, window, self.wanted)
        self.buffer.add(piece, speaking=ahead.speaking or any(window.speech for window in windows))
        if ahead.speaking and self.item.due(len(ahead.kept), self.wanted.delay):
            self.words.look(self.item, ahead.kept, self.wanted)

    async def _commit(self, _: dict[str, Any]) -> None:
        rest = self.decoder.flush()
        self._count(rest)
        if self.pending < SHORTEST_COMMIT * RATE:
            message = (
                f"the buffer holds less than {SHORTEST_COMMIT * 1000:.0f} ms of sound; append more first"
            )
            raise ApiError(400, message, param="audio", code="input_audio_buffer_commit_empty")
        # No window: nobody spoke, and the item has no words.
        await self._finish(await asyncio.to_thread(self._pieces, rest))
        self._restart()

    def _pieces(self, rest: Floats) -> list[Window]:
        """Return the audio of the buffer, or of the current turn."""
        cutter = self.spoken or PauseCutter()
        wave = rest if self.spoken else np.concatenate([self.buffer.wave, rest])
        return [*cutter.feed(wave), *cutter.finish()]

    async def _clear(self, _: dict[str, Any]) -> None:
        self._restart()
        await self.connection.send("input_audio_buffer.cleared")

    async def _finish(self, windows: Sequence[Window]) -> None:
        """Commit the item and request its transcript, if somebody speaks; with too many in progress this
        waits, and so does the socket.
        """
        self.item.drop_looks()
        await self.connection.send(
            "input_audio_buffer.committed", item_id=self.item.id, previous_item_id=self.previous
        )
        await self.words.finish(self.item, [window for window in windows if window.speech], self.wanted)
        self.previous, self.pending = self.item.id, 0
        self.item = Item()
