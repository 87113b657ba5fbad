"""Write transcripts in OpenAI's response formats; tests hold them to the types of OpenAI's own client."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import ceil
from typing import Any

from fastapi import Response
from fastapi.responses import JSONResponse, PlainTextResponse

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
    return {
        "text": transcript.text,
        "languages": languages(transcript),
        "usage": seconds_used(transcript.duration),
        **({"logprobs": token_log_probs(transcript)} if log_probs else {}),
    }


def languages(transcript: Transcript) -> list[dict[str, str]]:
    """Return the languages of a transcript."""
    return [{"code": code} for code in transcript.languages]


def seconds_used(seconds: float) -> dict[str, Any]:
    """Return usage by duration."""
    return {"type": "duration", "seconds": seconds}


def _diarized(transcript: Transcript) -> dict[str, Any]:
    return {
        "task": "transcribe",
        "duration": transcript.duration,
        "text": transcript.text,
        "segments": list(speaker_segments(transcript)),
        "usage": seconds_used(transcript.duration),
    }


def speaker_segments(transcript: Transcript) -> Iterator[dict[str, Any]]:
    """Return segments with their speakers, for whole and streamed answers."""
    for number, segment in enumerate(transcript.segments):
        yield {
            "id": f"seg_{number}",
            "type": "transcript.text.segment",
            "start": segment.start,
            "end": segment.end,
            "text": segment.text,
            "speaker": segment.speaker,
        }


def token_log_probs(transcript: Transcript) -> list[dict[str, Any]]:
    """Return each token's bytes and log probability in OpenAI's format."""
    return [
        {"token": raw.decode("utf-8", "replace"), "bytes": list(raw), "logprob": value}
        for raw, value in transcript.token_log_probs
    ]


def _verbose(transcript: Transcript, granularities: set[str], task: str) -> dict[str, Any]:
    found: dict[str, Any] = {
        "task": task,
        "duration": transcript.duration,
        "language": "english" if task == "translate" else language_name(transcript.language),
        "text": transcript.text,
        "usage": seconds_used(transcript.duration),
    }
    if "segment" in granularities:
        found["segments"] = [_segment(i, segment) for i, segment in enumerate(transcript.segments)]
    if "word" in granularities:
        found["words"] = [
            {"word": word.text, "start": word.start, "end": word.end, **_marks(word)}
            for word in transcript.words
        ]
    return found


def _marks(one: Segment | Word) -> dict[str, Any]:
    """Return the speaker, if speakers were distinguished, and whether somebody else speaks meanwhile."""
    overlap = isinstance(one, Word) and one.overlap
    return {**({"speaker": one.speaker} if one.speaker else {}), **({"overlap": True} if overlap else {})}


def _segment(number: int, segment: Segment) -> dict[str, Any]:
    """Make a segment; `seek` is the start of its window in frames of 10 ms."""
    return {
        "id": number,
        "seek": round(segment.window * 100),
        "start": segment.start,
        "end": segment.end,
        "text": segment.text,
        "tokens": list(segment.tokens),
        "temperature": segment.temperature,
        "avg_logprob": segment.avg_logprob,
        "no_speech_prob": segment.no_speech_prob,
        "compression_ratio": compression_ratio(segment.text),
        **_marks(segment),
    }


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
        yield f"{_clock(segment.start, comma)} --> {_clock(end, comma)}", text, " ".join(speaker.split())


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
    return {
        "type": "transcript.text.delta",
        "delta": text,
        **({"logprobs": token_log_probs(part)} if log_probs else {}),
    }


def done(transcript: Transcript, *, log_probs: bool) -> dict[str, Any]:
    """Make the last event: the whole text and usage. An audio token is 20 ms, as Whisper's encoder outputs
    them.
    """
    audio, text = ceil(transcript.duration * 50), transcript.prompt_tokens
    return {
        "type": "transcript.text.done",
        "text": transcript.text,
        "languages": languages(transcript),
        "usage": {
            "type": "tokens",
            "input_tokens": audio + text,
            "input_token_details": {"audio_tokens": audio, "text_tokens": text},
            "output_tokens": transcript.output_tokens,
            "total_tokens": audio + text + transcript.output_tokens,
        },
        **({"logprobs": token_log_probs(transcript)} if log_probs else {}),
    }
