"""Transcription of a whole recording: windows, prompts, and results put together again."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from .errors import ApiError
from .triton import Pool, Triton
from .windows import RATE, Window, cut

# openai/whisper transcribe.py: a window counts as silent above this no-speech probability if its words are unlikely as well.
NO_SPEECH = 0.6
UNLIKELY = -1.0


@dataclass(frozen=True)
class Options:
    """What a client asked for. `language`: ISO code or None for detection. `timestamps`: whether segments are wanted."""

    task: str
    language: str | None
    prompt: str
    temperature: float
    timestamps: bool
    max_tokens: int | None = None
    beam_width: int | None = None


@dataclass(frozen=True)
class Segment:
    """Words with their times in seconds from the beginning of the recording."""

    start: float
    end: float
    text: str
    tokens: tuple[int, ...]
    avg_logprob: float
    no_speech_prob: float


@dataclass(frozen=True)
class Transcript:
    """What was said."""

    text: str
    language: str
    duration: float
    segments: tuple[Segment, ...]


def text_prefix(options: Options) -> str:
    """Whisper's decoder prompt; without a language the façade detects it."""
    context = f"<|startofprev|> {options.prompt.strip()}" if options.prompt.strip() else ""
    language = f"<|{options.language}|>" if options.language else ""
    return f"{context}<|startoftranscript|>{language}<|{options.task}|>" + ("" if options.timestamps else "<|notimestamps|>")


class Transcriber:
    """Sends windows to a pool."""

    def __init__(self, triton: Triton, windows_at_once: int) -> None:
        self.triton = triton
        self.windows_at_once = windows_at_once

    async def transcribe(self, pool: Pool, wave: NDArray[np.float32], options: Options, request_id: str) -> Transcript:
        """All windows, several at once; the first one settles the language for the rest."""
        windows = cut(wave)
        first = await self._window(pool, windows[0], options, request_id)
        settled = replace(options, language=options.language or first.language, prompt="")
        gate = asyncio.Semaphore(self.windows_at_once)

        async def gated(window: Window) -> Transcript:
            async with gate:
                return await self._window(pool, window, settled, request_id)

        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(gated(window)) for window in windows[1:]]
        except ExceptionGroup as failed:
            raise failed.exceptions[0] from failed  # one error is what a client can act on
        parts = [first, *(task.result() for task in tasks)]
        segments = tuple(segment for part in parts for segment in part.segments)
        return Transcript(" ".join(part.text for part in parts if part.text), first.language, len(wave) / RATE, segments)

    async def _window(self, pool: Pool, window: Window, options: Options, request_id: str) -> Transcript:
        outputs = ["TRANSCRIPTS", "LANGUAGE", "AVG_LOGPROB"]
        if options.timestamps:
            outputs += ["TOKENS", "TOKEN_LOGPROBS", "SEGMENT_TEXTS", "SEGMENT_TIMES", "SEGMENT_SIZES", "NO_SPEECH_PROB"]
        elif options.language:
            outputs.remove("LANGUAGE")  # asking for it costs a second look at the sound
        arrays = {"WAV": window.wave[None], "TEXT_PREFIX": np.array([[text_prefix(options).encode()]], object)}
        if options.temperature:
            arrays["TEMPERATURE"] = np.array([[options.temperature]], np.float32)
        if options.max_tokens:
            arrays["MAX_TOKENS"] = np.array([[options.max_tokens]], np.int32)
        if options.beam_width:
            arrays["BEAM_WIDTH"] = np.array([[options.beam_width]], np.int32)
        try:
            result = await self.triton.infer(pool, "whisper_bls", arrays, outputs, request_id)
        except ApiError as error:
            raise ApiError(error.status, error.message, param=error.param or _param(error.message), code=error.code, retry_after=error.retry_after) from error
        language = result["LANGUAGE"].ravel()[0].decode() if "LANGUAGE" in result else options.language or ""
        text = result["TRANSCRIPTS"].ravel()[0].decode()
        segments = tuple(_segments(result, window.start)) if options.timestamps else ()
        if options.timestamps and float(result["NO_SPEECH_PROB"].ravel()[0]) > NO_SPEECH and float(result["AVG_LOGPROB"].ravel()[0]) < UNLIKELY:
            text, segments = "", ()
        return Transcript(text, language, len(window.wave) / RATE, segments)


def _param(message: str) -> str | None:
    """The form field behind a tensor that the façade complains about."""
    fields = {"TEXT_PREFIX": "prompt", "WAV": "file", "MAX_TOKENS": "max_tokens", "<|": "language", "beam_width": "beam_width", "temperature": "temperature"}
    return next((field for word, field in fields.items() if word in message), None)


def _segments(result: dict[str, NDArray[np.float32]], start: float) -> Sequence[Segment]:
    texts, times, sizes = result["SEGMENT_TEXTS"].ravel(), result["SEGMENT_TIMES"].reshape(-1, 2), result["SEGMENT_SIZES"].ravel()
    tokens, log_probs = result["TOKENS"].ravel(), result["TOKEN_LOGPROBS"].ravel()
    no_speech, segments, at = float(result["NO_SPEECH_PROB"].ravel()[0]), [], 0
    for text, (begin, end), size in zip(texts, times, sizes, strict=True):
        own, probs = tokens[at : at + size], log_probs[at : at + size]
        at += int(size)
        average = float(probs.mean()) if len(probs) else 0.0
        segments.append(Segment(round(start + float(begin), 2), round(start + float(end), 2), text.decode(), tuple(map(int, own)), average, no_speech))
    return segments
