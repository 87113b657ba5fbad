"""POST /v1/audio/transcriptions."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, cast

from fastapi import APIRouter, Depends, Request, Response
from fastapi.responses import JSONResponse, PlainTextResponse
from openai.types.audio import Transcription, TranscriptionSegment, TranscriptionVerbose
from openai.types.audio.transcription import UsageDuration
from openai.types.audio.transcription_verbose import Usage
from pydantic import BaseModel, Field, ValidationError

from . import media
from .errors import ApiError
from .languages import language_code, language_name
from .services import Services, services
from .speech import Options, Transcript
from .upload import Upload, receive

router = APIRouter()
ServicesDep = Annotated[Services, Depends(services)]


class TranscriptionRequest(BaseModel):
    """The form's fields besides the file. `max_tokens` and `beam_width` are extensions."""

    model: str
    language: str | None = None
    prompt: str = ""
    response_format: Literal["json", "text", "verbose_json"] = "json"
    temperature: float = Field(0.0, ge=0.0, le=1.0)
    max_tokens: int | None = Field(None, ge=1)
    beam_width: int | None = Field(None, ge=1, le=16)


# Fields of OpenAI's API that exist but are not served yet: a silent 200 would be a wrong answer.
NOT_YET = {"timestamp_granularities[]": {"segment"}, "stream": {"false"}, "chunking_strategy": {"auto"}, "include[]": set[str]()}


def parse(fields: Mapping[str, list[str]]) -> TranscriptionRequest:
    """Form fields as a request.

    Raises:
        ApiError: 400 with `param` for unknown, repeated, malformed or unsupported fields.
    """
    for name, values in fields.items():
        if name in NOT_YET:
            if any(value not in NOT_YET[name] for value in values):
                allowed = ", ".join(sorted(NOT_YET[name])) or "nothing"
                raise ApiError(400, f"{name}={values[0]!r} is not supported; allowed: {allowed}", param=name, code="unsupported_value")
        elif name not in TranscriptionRequest.model_fields:
            raise ApiError(400, f"unknown field {name!r}; remove it", param=name, code="unknown_parameter")
        elif len(values) > 1:
            raise ApiError(400, f"{name} is given {len(values)} times; give it once", param=name, code="invalid_value")
    if "timestamp_granularities[]" in fields and fields.get("response_format") != ["verbose_json"]:
        raise ApiError(400, "timestamp_granularities[] needs response_format=verbose_json", param="timestamp_granularities[]", code="unsupported_value")
    try:
        single = {name: values[0] for name, values in fields.items() if name in TranscriptionRequest.model_fields and values[0] != ""}
        return TranscriptionRequest(**cast("dict[str, Any]", single))
    except ValidationError as error:
        first = error.errors()[0]
        raise ApiError(400, f"{first['loc'][0]}: {first['msg']}", param=str(first["loc"][0]), code="invalid_value") from error


def options(request: TranscriptionRequest, task: str) -> Options:
    """Checked and translated for the transcriber."""
    if "<|" in request.prompt:
        raise ApiError(400, "prompt must not contain special tokens such as <|…|>; send plain text", param="prompt", code="invalid_value")
    return Options(
        task=task,
        language=language_code(request.language) if request.language else None,
        prompt=request.prompt,
        temperature=request.temperature,
        timestamps=request.response_format == "verbose_json",
        max_tokens=request.max_tokens,
        beam_width=request.beam_width,
    )


@router.post("/v1/audio/transcriptions")
async def transcriptions(request: Request, tools: ServicesDep) -> Response:
    """Speech to text in OpenAI's formats json, text and verbose_json."""
    async with receive(request, tools.settings.max_upload_bytes) as upload:
        form = parse(upload.fields)
        chosen = options(form, "transcribe")
        pool = tools.pool(form.model, "whisper")
        wave = await asyncio.to_thread(_decode, upload, tools)
        with tools.metrics.transcription(form.model, len(wave) / media.RATE):
            transcript = await tools.transcriber.transcribe(pool, wave, chosen, request.state.request_id)
    return formatted(transcript, form.response_format, form.temperature)


def _decode(upload: Upload, tools: Services) -> Any:
    settings = tools.settings
    try:
        return media.decode(Path(upload.path), max_seconds=settings.max_audio_seconds, time_limit=settings.decode_seconds)
    except media.BadMedia as error:
        raise ApiError(400, f"file: {error}", param="file", code="invalid_file") from error


def formatted(transcript: Transcript, response_format: str, temperature: float) -> Response:
    """The body in the wanted format."""
    if response_format == "text":
        return PlainTextResponse(transcript.text + "\n")
    if response_format == "json":
        plain = Transcription(text=transcript.text, usage=UsageDuration(seconds=transcript.duration, type="duration"))
        return JSONResponse(plain.model_dump(exclude_none=True))
    segments = [
        TranscriptionSegment(
            id=i, seek=int(segment.start // 30 * 3000), start=segment.start, end=segment.end, text=segment.text, tokens=list(segment.tokens), temperature=temperature,
            avg_logprob=segment.avg_logprob, no_speech_prob=segment.no_speech_prob, compression_ratio=compression_ratio(segment.text),
        )
        for i, segment in enumerate(transcript.segments)
    ]  # fmt: skip
    verbose = TranscriptionVerbose(
        duration=transcript.duration, language=language_name(transcript.language), text=transcript.text, segments=segments,
        usage=Usage(seconds=transcript.duration, type="duration"),
    )  # fmt: skip
    return JSONResponse({"task": "transcribe", **verbose.model_dump(exclude_none=True)})


def compression_ratio(text: str) -> float:
    """Length of the text over its zlib-compressed length (openai/whisper utils.py): above 2.4 it probably repeats itself."""
    raw = text.encode()
    return len(raw) / len(zlib.compress(raw)) if raw else 0.0
