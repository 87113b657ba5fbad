"""Transcribe stretches of a recording concurrently; the windows of one stretch are transcribed in turn, each
from the start of a sentence.

If all windows were cut beforehand, they would end inside sentences, and both halves would be guessed
(docs/benchmarks/real-speech.md). With windows in turn alone, engines would idle.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from dataclasses import replace

from conch.tasks import end

from .options import Options
from .transcript import Transcript
from .tuning import TUNING
from .windows import Window

# Transcripts of windows in order, for the options of the first.
TranscribeWindows = Callable[[AsyncIterator[Window], Options], AsyncGenerator[Transcript, None]]


def ends(window: Window, seconds: float) -> bool:
    """Tell whether a stretch, `seconds` long with this window, ends with it."""
    return not window.goes_on or seconds >= TUNING.stretch


class Stretch:
    """Windows that one task transcribes in turn, while others are still being cut."""

    def __init__(self, transcribe: TranscribeWindows, options: Options) -> None:
        self.seconds = 0.0
        self.windows: asyncio.Queue[Window | None] = asyncio.Queue()
        self.found: asyncio.Queue[Transcript | None] = asyncio.Queue()
        self.task = asyncio.create_task(self._run(transcribe, options))

    def add(self, window: Window | None) -> None:
        """Add a window; None marks the end."""
        self.seconds += window.seconds if window else 0.0
        self.windows.put_nowait(window)

    async def next(self) -> Transcript | None:
        """Return the next transcript; None after the last.

        Raises:
            ApiError: what ended the task.
        """
        part = await self.found.get()
        if part is None:
            await self.task
        return part

    async def _run(self, transcribe: TranscribeWindows, options: Options) -> None:
        try:
            async for part in transcribe(self._windows(), options):
                self.found.put_nowait(part)
        finally:
            self.found.put_nowait(None)

    async def _windows(self) -> AsyncIterator[Window]:
        while (window := await self.windows.get()) is not None:
            yield window


class Stretches:
    """The stretches of a recording that run now, at most `at_once`. The first words decide the language, for
    which other stretches wait; the prompt goes to the first.
    """

    def __init__(self, transcribe: TranscribeWindows, options: Options, at_once: int) -> None:
        self.transcribe, self.options, self.at_once = transcribe, options, at_once
        self.settled = bool(options.language) or options.multilingual
        # Where the number of tokens of a window is limited, or words are only looked at.
        self.alone = bool(options.max_tokens) or options.draft
        self.running: deque[Stretch] = deque()
        self.filling: Stretch | None = None

    def add(self, window: Window) -> None:
        """Add a window, once `ready` has made room."""
        if not self.filling:
            self.filling = Stretch(self.transcribe, self.options)
            self.running.append(self.filling)
            self.options = replace(self.options, prompt="") if self.settled else self.options
        last = self.alone or ends(window, self.filling.seconds + window.seconds)
        self.filling.add(replace(window, goes_on=window.goes_on and not last))
        if last:
            self._close()

    async def ready(self) -> AsyncIterator[Transcript]:
        """Return finished transcripts in order, and wait for those that must finish before another window has
        room.
        """
        while self.running and (not self.running[0].found.empty() or not self._room()):
            if (part := await self._next()) is not None:
                yield part

    async def remaining(self) -> AsyncIterator[Transcript]:
        """Return all remaining transcripts; no window follows."""
        self._close()
        while self.running:
            if (part := await self._next()) is not None:
                yield part

    async def stop(self) -> None:
        """Cancel what is still running."""
        await end([stretch.task for stretch in self.running])

    def _room(self) -> bool:
        return bool(self.filling) or (self.settled and len(self.running) < self.at_once)

    def _close(self) -> None:
        if self.filling:
            self.filling.add(None)
        self.filling = None

    async def _next(self) -> Transcript | None:
        part = await self.running[0].next()
        if part is None:
            self.running.popleft()
        elif part.text and not self.settled:  # silence decides nothing
            self.options = replace(self.options, language=part.language or None, prompt="")
            self.settled = True
        return part
