"""Write transcripts in OpenAI's response formats."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from fastapi import Response
from fastapi.responses import JSONResponse, PlainTextResponse
from openai.types.audio import (
    Transcription,
    TranscriptionDiarized,
    TranscriptionSegment,
    TranscriptionTextDeltaEvent,
    TranscriptionTextDoneEvent,
    TranscriptionTextSegmentEvent,
    TranscriptionVerbose,
    TranscriptionWord,
)
from openai.types.audio.transcription import UsageDuration
from openai.types.audio.transcription_language import TranscriptionLanguage
from openai.types.audio.transcription_text_done_event import Usage as UsageTokens
from openai.types.audio.transcription_text_done_event import UsageInputTokenDetails
from openai.types.audio.transcription_verbose import Usage

from conch.whisper import compression_ratio
from speech.transcript import Segment, Transcript, Word

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
    """Return the body in the requested format."""
    if response_format == "json":
        return JSONResponse(_plain(transcript, log_probs=log_probs))
    if response_format == "verbose_json":
        return JSONResponse(_verbose(transcript, set(granularities), task))
    if response_format == "diarized_json":
        return JSONResponse(_diarized(transcript))
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


def _diarized(transcript: Transcript) -> dict[str, Any]:
    return TranscriptionDiarized.model_validate(
        {
            "task": "transcribe",
            "duration": transcript.duration,
            "text": transcript.text,
            "segments": list(speaker_segments(transcript)),
            "usage": {"type": "duration", "seconds": transcript.duration},
        }
    ).model_dump(exclude_none=True)


def speaker_segments(transcript: Transcript) -> Iterator[dict[str, Any]]:
    """Return segments with their speakers, for whole and streamed answers."""
    for number, segment in enumerate(transcript.segments):
        yield TranscriptionTextSegmentEvent(
            id=f"seg_{number}",
            type="transcript.text.segment",
            start=segment.start,
            end=segment.end,
            text=segment.text,
            speaker=segment.speaker,
        ).model_dump()


def token_log_probs(transcript: Transcript) -> list[dict[str, Any]]:
    """Return each token's bytes and log probability in OpenAI's format."""
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
    found = {"task": task, **verbose.model_dump(exclude_none=True)}
    for row, segment in zip(found.get("segments", ()), transcript.segments, strict=False):
        row.update(_marks(segment))
    for row, word in zip(found.get("words", ()), transcript.words, strict=False):
        row.update(_marks(word))
    return found


def _marks(one: Segment | Word) -> dict[str, Any]:
    """Return the speaker, if speakers were distinguished, and whether somebody else speaks meanwhile."""
    overlap = isinstance(one, Word) and one.overlap
    return {**({"speaker": one.speaker} if one.speaker else {}), **({"overlap": True} if overlap else {})}


def _segment(number: int, segment: Segment) -> TranscriptionSegment:
    """Make a segment; `seek` is the start of its window in frames of 10 ms."""
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


def _cues(segments: Iterable[Segment], comma: str) -> Iterable[tuple[str, str, str]]:
    """Yield times, text and speaker, which is empty where speakers were not distinguished."""
    for segment in segments:
        end = max(segment.end, segment.start + SHORTEST)
        # An arrow inside a cue would end it.
        text, speaker = (words.replace("-->", "→") for words in (segment.text, segment.speaker))
        yield f"{_clock(segment.start, comma)} --> {_clock(end, comma)}", text, _one_line(speaker)


def _one_line(name: str) -> str:
    return " ".join(name.split())


def srt(segments: Iterable[Segment]) -> str:
    """Write SubRip; a speaker's name precedes the text."""
    cues = enumerate(_cues(segments, ","), 1)
    return "".join(
        f"{n}\n{times}\n{speaker}{': ' if speaker else ''}{text}\n\n" for n, (times, text, speaker) in cues
    )


def vtt(segments: Iterable[Segment]) -> str:
    """Write WebVTT (https://www.w3.org/TR/webvtt1/): & and < are escaped in cue text, and > in a voice's
    name.
    """
    cues = (
        f"{times}\n{_voice(speaker)}{_escaped(text)}\n\n" for times, text, speaker in _cues(segments, ".")
    )
    return "WEBVTT\n\n" + "".join(cues)


def _voice(speaker: str) -> str:
    return f"<v {_escaped(speaker).replace('>', '&gt;')}>" if speaker else ""


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;")


def delta(text: str, part: Transcript, *, log_probs: bool) -> dict[str, Any]:
    """Make an event of a streamed transcription."""
    found = token_log_probs(part) if log_probs else None
    return TranscriptionTextDeltaEvent.model_validate(
        {"delta": text, "type": "transcript.text.delta", "logprobs": found}
    ).model_dump(exclude_none=True)


def done(transcript: Transcript, *, log_probs: bool) -> dict[str, Any]:
    """Make the last event: the whole text and usage. An audio token is 20 ms, as Whisper's encoder outputs
    them.
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
