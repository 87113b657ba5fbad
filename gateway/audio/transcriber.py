"""Transcription of a recording: windows go to the pool, several at once; what comes back is judged, tried
again where it must be, completed where speech is without words, and put together in order.
"""

from __future__ import annotations

import asyncio
import re
import zlib
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Sequence
from dataclasses import dataclass, replace
from math import ceil, inf
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conch.deployment import Pool

from ..errors import ApiError
from ..triton import Arrays, Triton
from .vad import Span
from .windows import Window, halves, missed, snapped, sounding

# openai/whisper transcribe.py: what makes a result doubtful, and the temperatures to try one after the other.
REPETITIVE = 2.4
UNLIKELY = -1.0
NO_SPEECH = 0.6
LADDER = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
SPLITTABLE = 4.0  # seconds; a shorter window that loops is tried at other temperatures instead
WORDS = "word_timestamps"  # the capability of engines that say when each word was said
LONGEST_WORD = (
    1.2  # seconds; what lies behind is speech without a word, which alignment gives to the word before it
)
TRIES = 8  # requests for one window, whatever comes back
PROGRESS = 0.2  # seconds
FORGETS = 0.5  # a text made at a higher temperature is no context for the next (openai/whisper transcribe.py)
TIME = re.compile(rb"<\|\d+\.\d\d\|>")
# How much lower the mean log probability of words is that a model made up when it was asked again: seen were
# 0.3 to 0.9 (mini-whisper); that of words it had left out was at most 0.1 lower (tiny.en, base).
GUESSED = 0.5
CONTEXT = 1500  # characters of earlier text for condition_on_previous_text; the façade keeps what fits


@dataclass(frozen=True)
class Options:
    """What a client asked for. `language`: ISO code or None for detection. `timestamps`: whether segments are
    wanted. `draft`: words for now, by one request for a window; they are heard again before they count.
    """

    task: str
    language: str | None
    prompt: str
    temperature: float
    timestamps: bool
    max_tokens: int | None = None
    beam_width: int | None = None
    words: bool = False
    log_probs: bool = False
    previous_text: bool = False
    multilingual: bool = False
    draft: bool = False


@dataclass(frozen=True)
class Segment:
    """Words with their times in seconds from the beginning of the recording; `window` is where the window
    began that they were heard in. `log_probs`: what each token of the text spells, and its log probability,
    if they were asked for.
    """

    start: float
    end: float
    text: str
    tokens: tuple[int, ...]
    avg_logprob: float
    no_speech_prob: float
    temperature: float = 0.0
    window: float = 0.0
    log_probs: tuple[tuple[bytes, float], ...] = ()


@dataclass(frozen=True)
class Word:
    """A word and its times in seconds from the beginning of the recording."""

    text: str
    start: float
    end: float


@dataclass(frozen=True)
class Transcript:
    """What was said in a window or in a recording. Counts of tokens are what the model read and wrote.
    `timed`: the text with the timestamps that the model wrote, as context of what follows.
    """

    text: str = ""
    language: str = ""
    duration: float = 0.0
    segments: tuple[Segment, ...] = ()
    words: tuple[Word, ...] = ()
    audio_tokens: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0
    timed: str = ""

    @property
    def token_log_probs(self) -> tuple[tuple[bytes, float], ...]:
        """Those of all segments."""
        return tuple(pair for segment in self.segments for pair in segment.log_probs)


BLANKLESS = {
    "zh",
    "ja",
    "th",
    "lo",
    "my",
    "yue",
}  # written without blanks, as serving/audio/tokens.py has it


def between(language: str) -> str:
    """What stands between the texts of two windows."""
    return "" if language in BLANKLESS else " "


def joined(parts: Sequence[Transcript]) -> Transcript:
    """Parts in order as one; the language is that of the first words."""
    language = next(
        (part.language for part in parts if part.text), next((part.language for part in parts), "")
    )
    return Transcript(
        between(language).join(part.text for part in parts if part.text),
        language,
        sum(part.duration for part in parts),
        tuple(segment for part in parts for segment in part.segments),
        tuple(word for part in parts for word in part.words),
        sum(part.audio_tokens for part in parts),
        sum(part.prompt_tokens for part in parts),
        sum(part.output_tokens for part in parts),
        "".join(part.timed for part in parts),
    )


def completed(first: Transcript, more: Transcript) -> Transcript:
    """A window's transcript with words that were found later, in the order of their times."""
    if not more.text:
        return replace(joined([first, replace(more, duration=0.0)]), text=first.text)
    begin = more.segments[0].start
    # The segment before may have been thought to reach over the speech that it left out.
    known = (
        replace(segment, end=max(segment.start, begin)) if segment.start <= begin < segment.end else segment
        for segment in first.segments
    )
    segments = tuple(sorted((*known, *more.segments), key=lambda segment: segment.start))
    words = tuple(sorted((*first.words, *more.words), key=lambda word: word.start))
    both = joined([first, replace(more, duration=0.0)])
    return replace(
        both,
        text=between(both.language).join(segment.text for segment in segments),
        segments=segments,
        words=words,
    )


def _known(more: Transcript, best: Transcript) -> bool:
    """Whether words that were asked for again are there already: their times were wrong, not their text."""
    plain = [re.sub(r"\W+", " ", one.text).casefold().strip() for one in (more, best)]
    return bool(plain[0]) and f" {plain[0]} " in f" {plain[1]} "


def _likelihood(part: Transcript) -> float:
    """Mean log probability of a text's tokens; 0 without any."""
    count = sum(len(segment.tokens) for segment in part.segments)
    return sum(segment.avg_logprob * len(segment.tokens) for segment in part.segments) / max(count, 1)


def _guessed(more: Transcript, best: Transcript) -> bool:
    """Whether words that were asked for again are much less likely than those around them, as they are where
    a model must say something about the end of a word that it has written down already.
    """
    return _likelihood(more) < _likelihood(best) - GUESSED


@dataclass
class Tries:
    """How often a window may still be asked for."""

    left: int = TRIES

    def one(self) -> bool:
        """Take one, if there is one."""
        self.left -= 1
        return self.left >= 0


@dataclass(frozen=True)
class Attempt:
    """One answer of the model for a window, and what it says about itself. `covered`: its segments in seconds
    of the window.
    """

    transcript: Transcript
    avg_logprob: float
    truncated: bool
    no_speech: float | None = None
    covered: tuple[Span, ...] = ()

    @property
    def loops(self) -> bool:
        """The text repeats itself, or ran into the token limit as loops do."""
        return self.truncated or compression_ratio(self.transcript.text) > REPETITIVE

    @property
    def doubtful(self) -> bool:
        """Worth another temperature."""
        return self.loops or self.avg_logprob < UNLIKELY


def compression_ratio(text: str) -> float:
    """Length of the text over its zlib-compressed length (openai/whisper utils.py): above 2.4 it probably
    repeats itself.
    """
    raw = text.encode()
    return len(raw) / len(zlib.compress(raw)) if raw else 0.0


def text_prefix(options: Options) -> str:
    """Whisper's decoder prompt; without a language the façade detects it."""
    context = f"<|startofprev|> {options.prompt.strip()}" if options.prompt.strip() else ""
    language = f"<|{options.language}|>" if options.language else ""
    return f"{context}<|startoftranscript|>{language}<|{options.task}|>"


class Transcriber:
    """Sends windows to a pool."""

    def __init__(self, triton: Triton, windows_at_once: int) -> None:
        self.triton = triton
        self.windows_at_once = windows_at_once

    async def transcribe(
        self, pool: Pool, windows: AsyncIterator[Window], options: Options, request_id: str
    ) -> AsyncGenerator[Transcript, None]:
        """One transcript for each window, in order. The first window with words settles the language for the
        rest; `prompt` is the text before it.

        Raises:
            ApiError: the first failure; what is still running is stopped.
        """
        running: deque[asyncio.Task[Transcript]] = deque()
        at_once = 1 if options.previous_text else self.windows_at_once
        settled, number = None, 0
        try:
            async for window in windows:
                number += 1
                if settled is None:
                    part = await self._window(pool, window, options, f"{request_id}-{number}")
                    if part.text and not options.multilingual:  # silence settles nothing
                        settled = replace(
                            options,
                            language=options.language or part.language or None,
                            prompt=self._context(options, part),
                        )
                    yield part
                    continue
                while running and (running[0].done() or len(running) >= at_once):
                    part = await running.popleft()
                    settled = replace(settled, prompt=self._context(settled, part))
                    yield part
                running.append(
                    asyncio.create_task(self._window(pool, window, settled, f"{request_id}-{number}"))
                )
            while running:
                yield await running.popleft()
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)

    @staticmethod
    def _context(options: Options, part: Transcript) -> str:
        """Earlier text for the next window; none after words that the model doubted."""
        if not options.previous_text or any(segment.temperature > FORGETS for segment in part.segments):
            return ""
        text = f"{options.prompt}{part.timed}"
        return text if len(text) <= CONTEXT else text[text.find("<|", len(text) - CONTEXT) :]

    async def _window(self, pool: Pool, window: Window, options: Options, request_id: str) -> Transcript:
        """A window's words. A real Whisper often ends its text at a pause, or leaves one out: speech without
        words is asked for again.
        """
        if options.draft:
            return (await self._attempt(pool, window, options, options.temperature, request_id)).transcript
        tries = Tries()
        best, covered = await self._heard(pool, window, options, tries, request_id)
        while not options.max_tokens and tries.left > 0 and (again := missed(window, covered)):
            part = window.part(*again)
            known = replace(
                options,
                language=options.language or best.language or None,
                prompt=self._context(options, best),
            )
            more, found = await self._heard(pool, part, known, tries, request_id)
            best = best if _known(more, best) or _guessed(more, best) else completed(best, more)
            begin, until = again
            ends = [begin + end for _, end in found]
            # What was asked for counts as done up to the last word; all of it, if there was none.
            covered = [*covered, (begin, max(ends) if ends and max(ends) > begin + PROGRESS else until)]
        return best

    async def _heard(
        self, pool: Pool, window: Window, options: Options, tries: Tries, request_id: str
    ) -> tuple[Transcript, list[Span]]:
        """The best transcript for a window and what it covers: the first that is not doubtful, in halves if
        it loops, else the likeliest of all temperatures.
        """
        tries.one()
        attempt = await self._attempt(pool, window, options, options.temperature, request_id)
        if not attempt.doubtful or options.max_tokens:
            return attempt.transcript, list(attempt.covered)
        if (
            attempt.avg_logprob < UNLIKELY
            and not attempt.loops
            and await self._silent(pool, window, options, attempt, request_id)
        ):
            return Transcript(language=attempt.transcript.language, duration=attempt.transcript.duration), [
                (0.0, window.seconds)
            ]
        if attempt.loops and window.seconds >= SPLITTABLE and tries.left > 1:
            return await self._halved(
                pool,
                window,
                replace(options, language=options.language or attempt.transcript.language or None),
                tries,
                request_id,
            )
        best = attempt
        for temperature in LADDER if options.temperature == 0.0 else ():
            if temperature > 0.0 and best.doubtful and tries.one():
                attempt = await self._attempt(pool, window, options, temperature, request_id)
                best = (
                    attempt
                    if (attempt.loops, -attempt.avg_logprob) < (best.loops, -best.avg_logprob)
                    else best
                )
        return best.transcript, list(best.covered)

    async def _halved(
        self, pool: Pool, window: Window, options: Options, tries: Tries, request_id: str
    ) -> tuple[Transcript, list[Span]]:
        first, second = halves(window)
        left, covered = await self._heard(pool, first, options, tries, request_id)
        right, more = await self._heard(pool, second, options, tries, request_id)
        return joined([left, right]), [
            *covered,
            *((begin + first.seconds, end + first.seconds) for begin, end in more),
        ]

    async def _silent(
        self, pool: Pool, window: Window, options: Options, attempt: Attempt, request_id: str
    ) -> bool:
        """Unlikely words, and the model thinks that nobody speaks. Asking costs a second look, so it is asked
        only then.
        """
        no_speech = attempt.no_speech
        if no_speech is None:
            result = await self._infer(
                pool, window, replace(options, max_tokens=1), 0.0, ["NO_SPEECH_PROB"], request_id
            )
            no_speech = float(result["NO_SPEECH_PROB"].ravel()[0])
        return no_speech > NO_SPEECH

    async def _attempt(
        self, pool: Pool, window: Window, options: Options, temperature: float, request_id: str
    ) -> Attempt:
        outputs = [
            "TRANSCRIPTS",
            "AVG_LOGPROB",
            "TRUNCATED",
            "TOKENS",
            "PROMPT_TOKENS",
            "TOKEN_LOGPROBS",
            "SEGMENT_TEXTS",
            "SEGMENT_TIMES",
            "SEGMENT_SIZES",
        ]
        if not options.language:
            outputs.append("LANGUAGE")  # asking for it costs a second look at the sound
        if options.timestamps:
            outputs.append("NO_SPEECH_PROB")  # the same
        if options.words or (WORDS in pool.capabilities and not options.draft):
            outputs += ["WORD_TEXTS", "WORD_TIMES"]
        if options.log_probs:
            outputs.append("TOKEN_BYTES")
        result = await self._infer(pool, window, options, temperature, outputs, request_id)
        return _attempt(result, window, options, temperature)

    async def _infer(
        self,
        pool: Pool,
        window: Window,
        options: Options,
        temperature: float,
        outputs: list[str],
        request_id: str,
    ) -> Arrays:
        arrays: dict[str, NDArray[Any]] = {
            "WAV": window.wave[None],
            "TEXT_PREFIX": np.array([[text_prefix(options).encode()]], object),
        }
        if temperature:
            arrays["TEMPERATURE"] = np.array([[temperature]], np.float32)
        if options.max_tokens:
            arrays["MAX_TOKENS"] = np.array([[options.max_tokens]], np.int32)
        if options.beam_width and not temperature:
            arrays["BEAM_WIDTH"] = np.array([[options.beam_width]], np.int32)
        if "WORD_TIMES" in outputs:
            arrays["WORD_TIMESTAMPS"] = np.array([[True]])
        try:
            return await self.triton.infer(pool, "whisper_bls", arrays, outputs, request_id)
        except ApiError as error:
            raise ApiError(
                error.status,
                error.message,
                param=error.param or _param(error.message),
                code=error.code,
                retry_after=error.retry_after,
            ) from error


def _param(message: str) -> str | None:
    """The form field behind a tensor that the façade complains about."""
    fields = {
        "TEXT_PREFIX": "prompt",
        "WAV": "file",
        "MAX_TOKENS": "max_tokens",
        "WORD_TIMESTAMPS": "timestamp_granularities[]",
        "<|": "language",
        "beam_width": "beam_width",
        "temperature": "temperature",
    }
    return next((field for word, field in fields.items() if word in message), None)


def _attempt(result: Arrays, window: Window, options: Options, temperature: float) -> Attempt:
    times = [(float(begin), float(end)) for begin, end in result["SEGMENT_TIMES"].reshape(-1, 2)]
    no_speech = float(result["NO_SPEECH_PROB"].ravel()[0]) if "NO_SPEECH_PROB" in result else None
    transcript = Transcript(
        result["TRANSCRIPTS"].ravel()[0].decode(),
        result["LANGUAGE"].ravel()[0].decode() if "LANGUAGE" in result else options.language or "",
        window.seconds,
        tuple(_segments(result, window, times, temperature, no_speech or 0.0)),
        tuple(_words(result, window)) if options.words else (),
        ceil(window.seconds * 50),
        int(result["PROMPT_TOKENS"].ravel()[0]),
        result["TOKENS"].size,
        "".join(
            f"<|{begin:.2f}|> {text.decode()}<|{end:.2f}|>"
            for text, (begin, end) in zip(result["SEGMENT_TEXTS"].ravel(), times, strict=True)
        ),
    )
    return Attempt(
        transcript,
        float(result["AVG_LOGPROB"].ravel()[0]),
        bool(result["TRUNCATED"].ravel()[0]),
        no_speech,
        tuple(_covered(result, times)),
    )


def _covered(result: Arrays, segments: Sequence[Span]) -> Iterable[Span]:
    """What a text accounts for, in seconds of the window: its words where their times are known, else its
    segments. A word reaches to the next one of its segment, or to the segment's end: how a pause is shared
    between a word and the punctuation behind it says little.
    """
    if "WORD_TIMES" not in result:
        return segments
    words = result["WORD_TIMES"].reshape(-1, 2).tolist()
    following = [*(begin for begin, _ in words[1:]), inf][: len(words)]
    return [
        (begin, min(begin + LONGEST_WORD, max(end, min(after, _end_of(begin, segments)))))
        for (begin, end), after in zip(words, following, strict=True)
    ]


def _end_of(at: float, segments: Sequence[Span]) -> float:
    """Where the segment ends that a time lies in."""
    return next((end for begin, end in segments if begin <= at <= end), at)


def _segments(
    result: Arrays, window: Window, times: Sequence[Span], temperature: float, no_speech: float
) -> Iterable[Segment]:
    texts, sizes = result["SEGMENT_TEXTS"].ravel(), result["SEGMENT_SIZES"].ravel()
    tokens, log_probs, at = result["TOKENS"].ravel(), result["TOKEN_LOGPROBS"].ravel(), 0
    spelled = result["TOKEN_BYTES"].ravel() if "TOKEN_BYTES" in result else result["TOKENS"].ravel()[:0]
    sounds = sounding(window)
    for text, span, size in zip(texts, times, sizes, strict=True):
        begin, end = snapped(span, sounds)
        own, probs = tokens[at : at + size], log_probs[at : at + size]
        pairs = zip(spelled[at : at + size], map(float, probs), strict=False)
        at += int(size)
        average = float(probs.mean()) if len(probs) else 0.0
        begins, ends = round(window.time(begin), 2), round(window.time(end, end=True), 2)
        said = tuple(pair for pair in pairs if not TIME.fullmatch(pair[0]))
        yield Segment(
            begins,
            max(begins, ends),
            text.decode(),
            tuple(map(int, own)),
            average,
            no_speech,
            temperature,
            window.start,
            said,
        )


def _words(result: Arrays, window: Window) -> Iterable[Word]:
    for text, (begin, end) in zip(
        result["WORD_TEXTS"].ravel(), result["WORD_TIMES"].reshape(-1, 2), strict=True
    ):
        begins = round(window.time(float(begin)), 2)
        yield Word(text.decode(), begins, max(begins, round(window.time(float(end), end=True), 2)))
