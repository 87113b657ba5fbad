"""Transcribe a recording: send windows to the pool concurrently, check the answers, retry where needed, fill
in missed speech, and join the results in order.
"""

from __future__ import annotations

import asyncio
import itertools
import re
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from math import inf

from conch.deployment import Pool
from conch.tasks import end
from conch.whisper import LOG_PROB_LIMIT

from .attempt import Attempt, FacadeClient
from .model import SpeechModel
from .options import Options
from .sounds import between
from .stretches import Stretches, TranscribeWindows
from .transcript import Transcript, completed, first_segments, is_known, joined, ordered
from .tuning import TUNING
from .vad import Span
from .windows import ENDED, SECONDS, Window, halves, missed

SEGMENT_START = re.compile(r"(?:^|(?<=\|>))<\|")  # each begins and ends with a time

# A transcript, and what of its window it covers, in seconds from where the window begins.
Covering = tuple[Transcript, list[Span]]


def context(options: Options, part: Transcript, before: float = inf) -> str:
    """Return earlier text as context for what starts at `before`, in seconds of the recording, or for the
    next window; none after doubtful words.
    """
    earlier = [segment for segment in part.segments if segment.start < before]
    if not options.previous_text or any(
        segment.temperature > TUNING.forgetful_temperature for segment in earlier
    ):
        return ""
    text = options.prompt + "".join(segment.timed for segment in earlier)
    starts = [found.start() for found in SEGMENT_START.finditer(text)]
    if len(text) <= TUNING.context_characters or not starts:
        return text
    return text[next((at for at in starts if at >= len(text) - TUNING.context_characters), starts[-1]) :]


@dataclass
class WindowRun:
    """All requests for one window. `left` is how many more it may make; `forgot`: its words go wrong with the
    previous text as context.
    """

    client: FacadeClient
    left: int = TUNING.tries
    forgot: bool = False

    def take(self) -> bool:
        """Count one more request, if one is left."""
        self.left -= 1
        return self.left >= 0

    def remembered(self, options: Options) -> Options:
        """Transcribe with the text before the window as context, if that did no harm."""
        return replace(options, prompt="") if self.forgot else options

    async def transcript(self, window: Window, options: Options) -> Transcript:
        """Return the window's words. Whisper often ends its text at a pause, or leaves one out: speech
        without words is transcribed again.

        Raises:
            ApiError: the pool did not answer, or refused.
        """
        if options.draft:
            return (await self.client.attempt(window, options, options.temperature)).transcript
        return await self.complete(window, options, *await self.best(window, options))

    async def sought(self, window: Window, options: Options) -> Transcript:
        """Return the words of a window whose speech goes on, up to the end of the last sentence; what follows
        is transcribed again with the next window (openai/whisper seeks to the end of the last segment). A
        text that ends too early for that is completed instead.

        Raises:
            ApiError: see `transcript`.
        """
        best, covered = await self.best(window, options)
        best = _to_sentence(best, window)
        until = window.place(best.segments[-1].end) if best.segments else 0.0
        if until < TUNING.least_seek:
            return replace(await self.complete(window, options, best, covered), duration=window.seconds)
        known = [(begin, min(end, until)) for begin, end in covered if begin < until]
        done = await self.complete(window.part(0.0, until), options, best, known)
        return replace(done, duration=between(window, until))

    async def complete(
        self, window: Window, options: Options, best: Transcript, covered: list[Span]
    ) -> Transcript:
        """Transcribe separately what the first answers left out."""
        while not options.max_tokens and self.left > 0 and (again := missed(window, covered)):
            part = window.part(*again)
            known = replace(
                options,
                language=options.language or best.language or None,
                prompt=context(self.remembered(options), best, part.start),
            )
            more, found = await self.best(part, known)
            best = best if is_known(more, best) else completed(best, more)
            begin, until = again
            # What was asked for counts as done up to the last word; all of it, if there was none.
            last = begin + max((end for _, end in found), default=0.0)
            covered = [*covered, (begin, last if last > begin else until)]
        return best

    async def best(self, window: Window, options: Options) -> Covering:
        """Return the first transcript that is not doubtful, in halves if it loops, otherwise the likeliest of
        all temperatures.
        """
        first = await self._first(window, options)
        if not first.doubtful or options.max_tokens:
            return first.transcript, list(first.covered)
        if options.previous_text and options.prompt and self.left > 0:
            self.forgot = True  # a text that goes wrong takes those after it along
            return await self.best(window, replace(options, prompt=""))
        language = first.transcript.language
        unlikely = first.avg_logprob < LOG_PROB_LIMIT and not first.loops
        if unlikely and await self._silent(window, options, first):
            return Transcript(language=language, duration=window.seconds), [(0.0, window.seconds)]
        if first.loops and window.seconds >= TUNING.splittable and self.left > 1:
            return await self._halved(window, replace(options, language=options.language or language or None))
        return await self._likeliest(window, options, first)

    async def _first(self, window: Window, options: Options) -> Attempt:
        """After earlier text, return the likelier of two concurrent answers: one with that text as context,
        one with only the client's own prompt, which has no timestamps.
        """
        self.take()
        own, mark, _ = options.prompt.partition("<|")
        if not options.previous_text or not mark or options.max_tokens or not self.take():
            return await self.client.attempt(window, options, options.temperature)
        both = (options, replace(options, prompt=own))
        asked = [asyncio.create_task(self.client.attempt(window, one, one.temperature)) for one in both]
        try:
            informed, alone = [await task for task in asked]
        finally:
            await end(asked)
        self.forgot = self.forgot or informed.doubtful
        own_score = alone.doubtful, -alone.avg_logprob - TUNING.context_head_start
        return informed if (informed.doubtful, -informed.avg_logprob) < own_score else alone

    async def _likeliest(self, window: Window, options: Options, best: Attempt) -> Covering:
        for temperature in TUNING.temperatures[1:] if options.temperature == 0.0 else ():
            if best.doubtful and self.take():
                attempt = await self.client.attempt(window, options, temperature)
                better = (attempt.loops, -attempt.avg_logprob) < (best.loops, -best.avg_logprob)
                best = attempt if better else best
        return best.transcript, list(best.covered)

    async def _halved(self, window: Window, options: Options) -> Covering:
        first, second = halves(window)
        left, covered = await self.best(first, options)
        right, more = await self.best(second, options)
        later = ((begin + first.seconds, end + first.seconds) for begin, end in more)
        return joined([left, right]), [*covered, *later]

    async def _silent(self, window: Window, options: Options, attempt: Attempt) -> bool:
        """Tell whether words are unlikely and the model detects no speech. That takes another encoder run, so
        it is checked only then.
        """
        known = attempt.no_speech
        return (
            await self.client.no_speech(window, options) if known is None else known
        ) > TUNING.no_speech_limit


class Transcriber:
    """Sends windows to a pool."""

    def __init__(self, model: SpeechModel, windows_at_once: int) -> None:
        self.model = model
        self.windows_at_once = windows_at_once
        self.urgent = 0  # final texts of live turns that are under way

    @contextmanager
    def hurry(self) -> Iterator[None]:
        """Transcribe a live turn, which a client waits for: recordings pause their requests meanwhile."""
        self.urgent += 1
        try:
            yield
        finally:
            self.urgent -= 1

    async def _patience(self) -> None:
        ends = time.monotonic() + TUNING.live_patience
        while self.urgent and time.monotonic() < ends:
            await asyncio.sleep(0.02)

    def transcribe(
        self, pool: Pool, windows: AsyncIterator[Window], options: Options, request_id: str
    ) -> AsyncGenerator[Transcript, None]:
        """Yield transcripts in order. The first words decide the language of the rest; `prompt` is the text
        before it.

        Raises:
            ApiError: the first failure; what is still running is stopped.
        """
        in_turn = partial(self._in_turn, partial(self._client, pool, request_id, itertools.count(1)))
        parts = (
            in_turn(windows, options) if options.previous_text else self._at_once(in_turn, windows, options)
        )
        return _in_order(parts, spoken=options.task == "transcribe")

    def _client(self, pool: Pool, request_id: str, numbers: Iterator[int]) -> WindowRun:
        return WindowRun(FacadeClient(self.model, pool, f"{request_id}-{next(numbers)}", self._patience))

    async def _at_once(
        self, transcribe_windows: TranscribeWindows, windows: AsyncIterator[Window], options: Options
    ) -> AsyncGenerator[Transcript, None]:
        stretches = Stretches(transcribe_windows, options, self.windows_at_once)
        try:
            async for window in windows:
                async for part in stretches.ready():
                    yield part
                stretches.add(window)
            async for part in stretches.remaining():
                yield part
        finally:
            await stretches.stop()

    async def _in_turn(
        self, client: Callable[[], WindowRun], windows: AsyncIterator[Window], options: Options
    ) -> AsyncGenerator[Transcript, None]:
        """Transcribe windows one after another, each with the previous text as context if requested.
        Continuous speech is transcribed 30 s at a time, from where the previous text ends: a text that has to
        end inside a sentence would be guessed there, and so would the next start.
        """
        held: Window | None = None
        async for window in _and_none(windows):
            if window:
                held = held.followed(window) if held else window
            elif held:
                held = replace(held, goes_on=False)
            while held and (held.seconds >= SECONDS or not held.goes_on):
                first = held.part(0.0, SECONDS)
                run = client()
                part = await (run.sought if first.goes_on and not options.max_tokens else run.transcript)(
                    first, options
                )
                options = run.remembered(options)
                if part.text:
                    language = options.language or (None if options.multilingual else part.language) or None
                    options = replace(options, language=language, prompt=context(options, part))
                held = held.part(part.duration, held.seconds)
                held = held if held.goes_on or _more(held) else None
                yield part


def _to_sentence(part: Transcript, window: Window) -> Transcript:
    """Drop the segments after the last one that ends with a sentence inside the window, if they are few."""
    ends = [window.place(segment.end) for segment in part.segments]
    for count in range(len(ends), 0, -1):
        if ends[count - 1] < max(TUNING.least_seek, ends[-1] - TUNING.repeated_sentence):
            break
        if ends[count - 1] <= window.seconds - TUNING.cut_sentence and ENDED.search(
            part.segments[count - 1].text
        ):
            return first_segments(part, count)
    return part


def _more(rest: Window) -> bool:
    """Tell whether what follows the last text is worth another request: more than its last word's end."""
    voice = sum(end - begin for begin, end in rest.speech)
    return voice >= TUNING.lost_speech or any(begin > TUNING.close_words for begin, _ in rest.speech)


async def _in_order(
    parts: AsyncGenerator[Transcript, None], *, spoken: bool
) -> AsyncGenerator[Transcript, None]:
    """Yield transcripts that do not overlap in time: a cut may lie in the last word of one, inside which the
    first word of the next then begins.
    """
    ended = 0.0
    async with aclosing(parts):
        async for part in parts:
            placed = ordered(part, ended, spoken=spoken)
            ended = max((segment.end for segment in placed.segments), default=ended)
            yield placed


async def _and_none(windows: AsyncIterator[Window]) -> AsyncIterator[Window | None]:
    """Yield all of them, then None."""
    async for window in windows:
        yield window
    yield None
