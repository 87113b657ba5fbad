"""One request to the speech façade for a window, and what its answer says."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conch.deployment import Pool
from conch.whisper import LOG_PROB_LIMIT, repeats, text_prefix

from .model import Arrays, SpeechModel
from .options import Options
from .pauses import TIME, SpeechPiece, TimedWord, cut, pieces_of, words_of
from .sounds import Flags, snapped, sounding
from .transcript import Segment, Transcript, Word, joint_of
from .vad import Span
from .windows import Window, may_lack

WORDS = "word_timestamps"  # the capability of engines that give the times of words
OUTPUTS = (
    "TRANSCRIPTS",
    "AVG_LOGPROB",
    "TRUNCATED",
    "TOKENS",
    "PROMPT_TOKENS",
    "TOKEN_LOGPROBS",
    "SEGMENT_TEXTS",
    "SEGMENT_TIMES",
    "SEGMENT_SIZES",
)


@dataclass(frozen=True)
class Attempt:
    """One answer of the model for a window, with its measures of quality. `covered`: its segments in seconds
    of the window.
    """

    transcript: Transcript
    avg_logprob: float
    truncated: bool
    no_speech: float | None = None
    covered: tuple[Span, ...] = ()

    @property
    def loops(self) -> bool:
        """Tell whether the text repeats itself or reached the token limit, as loops do."""
        return self.truncated or repeats(self.transcript.text)

    @property
    def doubtful(self) -> bool:
        """Tell whether another temperature should be tried."""
        return self.loops or self.avg_logprob < LOG_PROB_LIMIT


@dataclass(frozen=True)
class FacadeClient:
    """Calls the speech façade of a pool under one request id. `patience` is awaited before each call for a
    recording.
    """

    model: SpeechModel
    pool: Pool
    request_id: str
    patience: Callable[[], Awaitable[None]]

    async def attempt(self, window: Window, options: Options, temperature: float) -> Attempt:
        """Transcribe at one temperature.

        Raises:
            Exception: what the model raises.
        """
        if not options.live:
            await self.patience()
        result = await self._infer(window, options, temperature, outputs_for(window, options, self.pool))
        return attempt_of(result, window, options, temperature)

    async def no_speech(self, window: Window, options: Options) -> float:
        """Return the no-speech probability.

        Raises:
            Exception: see `attempt`.
        """
        first = replace(options, max_tokens=1, beam_width=1)
        result = await self._infer(window, first, 0.0, ["NO_SPEECH_PROB"])
        return float(result["NO_SPEECH_PROB"].ravel()[0])

    async def _infer(
        self, window: Window, options: Options, temperature: float, outputs: list[str]
    ) -> Arrays:
        beams = options.beam_width or (1 if options.draft else self.pool.beams)
        arrays = inputs_for(window, options, temperature, beams, words="WORD_TIMES" in outputs)
        return await self.model.infer(self.pool, arrays, outputs, self.request_id)


def outputs_for(window: Window, options: Options, pool: Pool) -> list[str]:
    """Return the façade's outputs that a client's options need, including word times where speech could be
    missed.
    """
    outputs = list(OUTPUTS)
    if not options.language:
        outputs.append("LANGUAGE")  # asking for it costs a second look at the sound
    if options.timestamps:
        outputs.append("NO_SPEECH_PROB")  # the same
    if options.words or (WORDS in pool.capabilities and not options.draft and may_lack(window)):
        outputs += ["WORD_TEXTS", "WORD_TIMES"]
    if options.log_probs or "WORD_TIMES" in outputs:
        outputs.append("TOKEN_BYTES")
    return outputs


def inputs_for(window: Window, options: Options, temperature: float, beams: int, *, words: bool) -> Arrays:
    """Make the façade's inputs for one window: WAV float32 [1, samples], the others [1, 1]."""
    prefix = text_prefix(options.task, options.language, options.prompt)
    arrays: dict[str, NDArray[Any]] = {
        "WAV": window.wave[None],
        "TEXT_PREFIX": np.array([[prefix.encode()]], object),
    }
    if temperature:
        arrays["TEMPERATURE"] = np.array([[temperature]], np.float32)
    if options.max_tokens:
        arrays["MAX_TOKENS"] = np.array([[options.max_tokens]], np.int32)
    if beams > 1 and not temperature:
        arrays["BEAM_WIDTH"] = np.array([[beams]], np.int32)
    if words:
        arrays["WORD_TIMESTAMPS"] = np.array([[True]])
    if options.languages and not options.language:
        arrays["LANGUAGES"] = np.array([[",".join(options.languages).encode()]], object)
    return arrays


def attempt_of(result: Arrays, window: Window, options: Options, temperature: float) -> Attempt:
    """Read the façade's outputs, with times in the recording."""
    times = [(float(begin), float(end)) for begin, end in result["SEGMENT_TIMES"].reshape(-1, 2)]
    no_speech = float(result["NO_SPEECH_PROB"].ravel()[0]) if "NO_SPEECH_PROB" in result else None
    language = result["LANGUAGE"].ravel()[0].decode() if "LANGUAGE" in result else options.language or ""
    timed = words_of(result)
    sounds = sounding(window)
    spoken = options.task == "transcribe"
    pieces, words = cut(list(pieces_of(result)), timed or [], window, sounds, in_order=spoken)
    transcript = Transcript(
        result["TRANSCRIPTS"].ravel()[0].decode(),
        language,
        window.seconds,
        tuple(_segments(pieces, window, options, temperature, no_speech or 0.0)),
        tuple(_words(words, window, sounds.voice)) if options.words else (),
        int(result["PROMPT_TOKENS"].ravel()[0]),
        result["TOKENS"].size,
        joint_of(options.task, language),
    )
    return Attempt(
        transcript,
        float(result["AVG_LOGPROB"].ravel()[0]),
        bool(result["TRUNCATED"].ravel()[0]),
        no_speech,
        tuple(_covered(timed, times)),
    )


def _covered(timed: Sequence[TimedWord] | None, segments: Sequence[Span]) -> Iterable[Span]:
    """Return the spans that a text covers, in seconds of the window: its words where their times are known,
    otherwise its segments. A word extends to the next one of its segment, or to the segment's end, since it
    is arbitrary how a pause is split between a word and the punctuation after it.
    """
    if timed is None:
        return segments
    words = [word.span for word in timed]
    following = [*(begin for begin, _ in words[1:]), inf][: len(words)]
    return [
        (begin, max(end, min(after, _end_of(begin, segments))))
        for (begin, end), after in zip(words, following, strict=True)
    ]


def _end_of(at: float, segments: Sequence[Span]) -> float:
    """Return the end of the segment that contains a time."""
    return next((end for begin, end in segments if begin <= at <= end), at)


def _segments(
    pieces: Iterable[SpeechPiece], window: Window, options: Options, temperature: float, no_speech: float
) -> Iterable[Segment]:
    for piece in pieces:
        begin, end = piece.span
        begins, ends = round(window.time(begin), 2), round(window.time(end, end=True), 2)
        pairs = zip(piece.spelled, piece.log_probs, strict=False) if options.log_probs else ()
        first, last = (f"<|{at:.2f}|>" for at in piece.span)
        yield Segment(
            begins,
            max(begins, ends),
            piece.text,
            piece.tokens,
            sum(piece.log_probs) / max(len(piece.log_probs), 1),
            no_speech,
            temperature,
            window.start,
            tuple(pair for pair in pairs if pair[0] and not TIME.fullmatch(pair[0])),
            f"{first} {piece.text}{last}",
        )


def _words(timed: Iterable[TimedWord], window: Window, sounds: Flags) -> Iterable[Word]:
    """Return words without the pauses that alignment added to them, as Whisper adds them to segments."""
    for word in timed:
        begin, end = snapped(word.span, sounds)
        begins = round(window.time(begin), 2)
        yield Word(word.text, begins, max(begins, round(window.time(end, end=True), 2)))
