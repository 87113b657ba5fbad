"""Transcribe a live session's turns, a few at once, and send the words in order of the turns, including what
two successive partial transcriptions of an unfinished turn agree on.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conch.deployment import Pool
from conch.errors import ApiError
from speech.options import Options
from speech.transcriber import Transcriber
from speech.transcript import Transcript, joined
from speech.vad import RATE
from speech.windows import Window

from ..audio.responses import languages, seconds_used, token_log_probs
from ..audio.schema import prompted, spoken
from .connection import LiveConnection
from .session import DELAYS, Transcription

BACK_OFF = 2.0  # a look that took long is followed by so many times as much new sound
FINALS = 4  # finished turns that wait for their words
EVENT = "conversation.item.input_audio_transcription"


def agreed(before: str, now: str) -> list[str]:
    """Return the words that two partial transcriptions of a growing turn both start with; the last word of
    either may be incomplete.
    """
    both = zip(before.split(), now.split()[:-1], strict=False)
    words = []
    for old, new in both:
        if old != new:
            break
        words.append(new)
    return words


@dataclass(frozen=True)
class WantedTranscript:
    """The pool and options of a session."""

    pool: Pool
    transcription: Transcription
    log_probs: bool = False

    @property
    def delay(self) -> float:
        """Return the seconds of new audio before the next partial transcription of an unfinished turn."""
        return DELAYS[self.transcription.delay]

    def options(self, *, draft: bool) -> Options:
        """Return the transcriber's options."""
        asked = self.transcription
        language, languages = spoken(asked.language, asked.languages)
        return Options(
            task="transcribe",
            language=language,
            prompt=prompted(asked.prompt, asked.keywords),
            temperature=0.0,
            timestamps=False,
            draft=draft,
            log_probs=self.log_probs and not draft,
            live=True,
            languages=languages,
        )


@dataclass
class Item:
    """One turn.

    Attributes:
        sent: words that the client has received of the audio now transcribed
        last: words of the last partial transcription, which covered `looked_at` samples and `took` so many
            seconds
        told: there was a delta
    """

    id: str = field(default_factory=lambda: f"item_{uuid.uuid4().hex[:20]}")
    sent: list[str] = field(default_factory=list)
    last: str = ""
    looked_at: int = 0
    looks: list[asyncio.Task[None]] = field(default_factory=list)
    took: float = 0.0
    told: bool = False
    finished: bool = False

    def due(self, samples: int, delay: float) -> bool:
        """Tell whether to transcribe a turn that has grown to so many samples again: after `delay` seconds of
        new audio, more where transcription is slow.
        """
        wait = max(delay, BACK_OFF * self.took)
        return samples - self.looked_at >= wait * RATE and all(look.done() for look in self.looks)

    def drop_looks(self) -> None:
        """Discard partial transcriptions in progress; nothing more of them is sent."""
        self.finished = True
        for look in self.looks:
            look.cancel()


class TurnWords:
    """Requests transcripts and sends their words."""

    def __init__(self, connection: LiveConnection, transcriber: Transcriber) -> None:
        self.connection, self.transcriber = connection, transcriber
        self.finals: asyncio.Queue[asyncio.Task[tuple[str, dict[str, Any]]]] = asyncio.Queue()
        self.room = asyncio.Semaphore(FINALS)
        self.requests = 0

    def look(self, item: Item, wave: NDArray[np.float32], wanted: WantedTranscript) -> None:
        """Start another partial transcription of an unfinished turn, float32 [samples]; none while a finished
        one is waiting, here or in another session.
        """
        if self.transcriber.urgent:
            return
        item.looked_at = len(wave)
        item.looks = [asyncio.create_task(self._partial(item, wave, wanted))]

    def settle(self, item: Item, window: Window, wanted: WantedTranscript) -> None:
        """Send the final words of a stretch between two pauses of a continuing turn; partial transcriptions
        go on after it.
        """
        item.looked_at = 0
        item.looks = [look for look in item.looks if not look.done()]
        item.looks.append(asyncio.create_task(self._settled(item, window, wanted, item.looks[-1:])))

    async def finish(self, item: Item, windows: Sequence[Window], wanted: WantedTranscript) -> None:
        """Request the transcript of a finished turn; with FINALS of them in progress this waits."""
        await self.room.acquire()
        self.finals.put_nowait(asyncio.create_task(self._final(item, windows, wanted)))

    async def tell(self) -> None:
        """Send the words of finished turns in order, until cancelled."""
        while True:
            kind, fields = await (await self.finals.get())
            self.room.release()
            await self.connection.send(f"{EVENT}.{kind}", **fields)

    def left(self) -> list[asyncio.Task[tuple[str, dict[str, Any]]]]:
        """Discard what will not be sent any more."""
        return [self.finals.get_nowait() for _ in range(self.finals.qsize())]

    async def _partial(self, item: Item, wave: NDArray[np.float32], wanted: WantedTranscript) -> None:
        """Send what this partial transcription and the one before agree on."""
        began = time.monotonic()
        with suppress(ApiError):  # the final words will come, or say why not
            now = (await self._transcribe([Window(wave, 0.0)], wanted, draft=True)).text
            await self._tell(item, agreed(item.last, now))
            item.last = now
        item.took = time.monotonic() - began

    async def _settled(
        self, item: Item, window: Window, wanted: WantedTranscript, before: list[asyncio.Task[None]]
    ) -> None:
        if before:
            await asyncio.wait(before)
        with suppress(ApiError):
            await self._tell(item, (await self._transcribe([window], wanted, draft=True)).text.split())
        item.sent, item.last = [], ""

    async def _tell(self, item: Item, words: list[str]) -> None:
        """Send the new part of words if they start with those sent already."""
        if item.finished or len(words) <= len(item.sent) or words[: len(item.sent)] != item.sent:
            return
        fresh = (" " if item.told else "") + " ".join(words[len(item.sent) :])
        item.sent, item.told = words, True
        await self.connection.send(f"{EVENT}.delta", item_id=item.id, content_index=0, delta=fresh)

    async def _final(
        self, item: Item, windows: Sequence[Window], wanted: WantedTranscript
    ) -> tuple[str, dict[str, Any]]:
        place = {"item_id": item.id, "content_index": 0}
        try:
            with self.transcriber.hurry():
                transcript = await self._transcribe(windows, wanted, draft=False)
        except Exception as error:  # noqa: BLE001  # the item fails, the session goes on
            return "failed", {**place, "error": self.connection.described(error)}
        seconds = round(sum(len(window.wave) for window in windows) / RATE, 3)
        return "completed", {
            **place,
            "transcript": transcript.text,
            "languages": languages(transcript),
            "usage": seconds_used(seconds),
            **({"logprobs": token_log_probs(transcript)} if wanted.log_probs else {}),
        }

    async def _transcribe(
        self, windows: Sequence[Window], wanted: WantedTranscript, *, draft: bool
    ) -> Transcript:
        self.requests += 1

        async def source() -> AsyncIterator[Window]:
            for window in windows:
                yield window

        name = f"{self.connection.request_id}-{self.requests}"
        parts = self.transcriber.transcribe(wanted.pool, source(), wanted.options(draft=draft), name)
        async with aclosing(parts):
            return joined([part async for part in parts])
