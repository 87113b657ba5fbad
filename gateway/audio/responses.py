"""Transcripts in OpenAI's response formats."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from fastapi import Response
from fastapi.responses import JSONResponse, PlainTextResponse
from openai.types.audio import (
    Transcription,
    TranscriptionSegment,
    TranscriptionTextDeltaEvent,
    TranscriptionTextDoneEvent,
    TranscriptionVerbose,
    TranscriptionWord,
)
from openai.types.audio.transcription import UsageDuration
from openai.types.audio.transcription_language import TranscriptionLanguage
from openai.types.audio.transcription_text_done_event import Usage as UsageTokens
from openai.types.audio.transcription_text_done_event import UsageInputTokenDetails
from openai.types.audio.transcription_verbose import Usage

from speech.transcript import Segment, Transcript, compression_ratio

from .languages import language_name

SHORTEST = 0.02  # a cue that ends where it begins is never shown


def formatted(
    transcript: Transcript,
    response_format: str,
    granularities: Iterable[str],
    task: str,
    *,
    log_probs: bool = False,
) -> Response:
    """The body in the wanted format."""
    if response_format == "json":
        return JSONResponse(_plain(transcript, log_probs=log_probs))
    if response_format == "verbose_json":
        return JSONResponse(_verbose(transcript, set(granularities), task))
    if response_format == "text":
        return PlainTextResponse(transcript.text + "\n")
    if response_format == "vtt":
        return PlainTextResponse(vtt(transcript.segments), media_type="text/vtt")
    return PlainTextResponse(srt(transcript.segments), media_type="application/x-subrip")


def _plain(transcript: Transcript, *, log_probs: bool) -> dict[str, Any]:
    usage = UsageDuration(seconds=transcript.duration, type="duration")
    spoken = [TranscriptionLanguage(code=code) for code in transcript.languages]
    plain = Transcription(text=transcript.text, languages=spoken, usage=usage).model_dump(exclude_none=True)
    return (
        {**plain, "logprobs": token_log_probs(transcript)} if log_probs else plain
    )  # the SDK's type would make floats of bytes


def token_log_probs(transcript: Transcript) -> list[dict[str, Any]]:
    """Each token's bytes and log probability, as OpenAI's answers have them."""
    return [
        {"token": raw.decode("utf-8", "replace"), "bytes": list(raw), "logprob": value}
        for raw, value in transcript.token_log_probs
    ]


def _verbose(transcript: Transcript, granularities: set[str], task: str) -> dict[str, Any]:
    language = "english" if task == "translate" else language_name(transcript.language)
    verbose = TranscriptionVerbose(
        duration=transcript.duration,
        language=language,
        text=transcript.text,
        segments=[_segment(i, segment) for i, segment in enumerate(transcript.segments)]
        if "segment" in granularities
        else None,
        words=[TranscriptionWord(word=word.text, start=word.start, end=word.end) for word in transcript.words]
        if "word" in granularities
        else None,
        usage=Usage(seconds=transcript.duration, type="duration"),
    )
    return {"task": task, **verbose.model_dump(exclude_none=True)}


def _segment(number: int, segment: Segment) -> TranscriptionSegment:
    """`seek` is the beginning of the segment's window, in frames of 10 ms."""
    return TranscriptionSegment(
        id=number,
        seek=round(segment.window * 100),
        start=segment.start,
        end=segment.end,
        text=segment.text,
        tokens=list(segment.tokens),
        temperature=segment.temperature,
        avg_logprob=segment.avg_logprob,
        no_speech_prob=segment.no_speech_prob,
        compression_ratio=compression_ratio(segment.text),
    )


def _clock(seconds: float, comma: str) -> str:
    milliseconds = round(seconds * 1000)
    hours, rest = divmod(milliseconds, 3_600_000)
    return f"{hours:02}:{rest // 60_000:02}:{rest // 1000 % 60:02}{comma}{milliseconds % 1000:03}"


def _cues(segments: Iterable[Segment], comma: str) -> Iterable[tuple[str, str]]:
    for segment in segments:
        end = max(segment.end, segment.start + SHORTEST)
        # An arrow inside a cue would end it.
        yield f"{_clock(segment.start, comma)} --> {_clock(end, comma)}", segment.text.replace("-->", "→")


def srt(segments: Iterable[Segment]) -> str:
    """SubRip."""
    return "".join(f"{n}\n{times}\n{text}\n\n" for n, (times, text) in enumerate(_cues(segments, ","), 1))


def vtt(segments: Iterable[Segment]) -> str:
    """WebVTT (https://www.w3.org/TR/webvtt1/): & and < are escaped in cue text."""
    cues = (
        f"{times}\n{text.replace('&', '&amp;').replace('<', '&lt;')}\n\n"
        for times, text in _cues(segments, ".")
    )
    return "WEBVTT\n\n" + "".join(cues)


def delta(text: str, part: Transcript, *, log_probs: bool) -> dict[str, Any]:
    """An event of a streamed transcription."""
    found = token_log_probs(part) if log_probs else None
    return TranscriptionTextDeltaEvent.model_validate(
        {"delta": text, "type": "transcript.text.delta", "logprobs": found}
    ).model_dump(exclude_none=True)


def done(transcript: Transcript, *, log_probs: bool) -> dict[str, Any]:
    """The last event: all of the text, and how much was read and written. A token of sound is 20 ms, as
    Whisper's encoder gives them.
    """
    details = UsageInputTokenDetails(
        audio_tokens=transcript.audio_tokens, text_tokens=transcript.prompt_tokens
    )
    read = transcript.audio_tokens + transcript.prompt_tokens
    usage = UsageTokens(
        input_tokens=read,
        output_tokens=transcript.output_tokens,
        total_tokens=read + transcript.output_tokens,
        type="tokens",
        input_token_details=details,
    )
    found = token_log_probs(transcript) if log_probs else None
    event = {
        "text": transcript.text,
        "type": "transcript.text.done",
        "languages": [{"code": code} for code in transcript.languages],
        "logprobs": found,
        "usage": usage,
    }
    return TranscriptionTextDoneEvent.model_validate(event).model_dump(exclude_none=True)
