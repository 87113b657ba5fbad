"""Form fields of the audio routes as typed requests. What OpenAI has and Whisper cannot do is refused by
name, never ignored.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ..errors import ApiError, explained
from .languages import language_code
from .options import Options
from .vad import TurnDetection

Format = Literal["json", "text", "srt", "vtt", "verbose_json"]
TIMED = {"srt", "vtt", "verbose_json"}


class ServerVad(BaseModel):
    """OpenAI's server_vad: the object of chunking_strategy, and a live session's turn detection."""

    model_config = ConfigDict(extra="forbid")

    type: Literal["server_vad"]
    threshold: float = Field(0.5, gt=0.0, lt=1.0)
    prefix_padding_ms: int = Field(300, ge=0, le=5000)
    silence_duration_ms: int = Field(200, ge=32, le=10_000)

    def turns(self) -> TurnDetection:
        """In seconds."""
        return TurnDetection(self.threshold, self.prefix_padding_ms / 1000, self.silence_duration_ms / 1000)


class TranslationRequest(BaseModel):
    """Fields of /v1/audio/translations besides the file. From `language` on they are extensions."""

    model_config = ConfigDict(extra="forbid")

    model: str
    prompt: str = ""
    response_format: Format = "json"
    temperature: float = Field(0.0, ge=0.0, le=1.0)
    language: str | None = None
    max_tokens: int | None = Field(None, ge=1, le=4096)
    beam_width: int | None = Field(None, ge=1, le=16)
    condition_on_previous_text: bool = False
    multilingual: bool = False


class TranscriptionRequest(TranslationRequest):
    """Fields of /v1/audio/transcriptions besides the file."""

    timestamp_granularities: tuple[Literal["word", "segment"], ...] = Field(("segment",), min_length=1)
    include: tuple[Literal["logprobs"], ...] = ()
    chunking_strategy: Literal["auto"] | ServerVad | None = None
    stream: bool = False


# Fields of OpenAI's other models.
ELSEWHERE = ("keywords", "languages", "known_speaker_names", "known_speaker_references")
REPEATED = ("timestamp_granularities", "include")
T = TypeVar("T", bound=TranslationRequest)


def body_schema(kind: type[TranslationRequest]) -> dict[str, Any]:
    """The form as OpenAPI describes it; Whisper's own names for repeated fields end in []."""
    schema = kind.model_json_schema(ref_template="#/components/schemas/{model}")
    vad = schema.pop("$defs", {}).get("ServerVad")
    fields = {
        f"{name}[]" if name in REPEATED else name: {**row} for name, row in schema["properties"].items()
    }
    if vad:
        fields["chunking_strategy"]["anyOf"] = [{"const": "auto", "type": "string"}, vad, {"type": "null"}]
    properties = {"file": {"type": "string", "format": "binary", "description": "the recording"}, **fields}
    form = {
        "type": "object",
        "properties": properties,
        "required": ["file", "model"],
        "additionalProperties": False,
    }
    return {"requestBody": {"required": True, "content": {"multipart/form-data": {"schema": form}}}}


def parse_transcription(fields: Mapping[str, list[str]]) -> TranscriptionRequest:
    """Raises ApiError 400 with `param`: unknown, repeated or malformed fields, and combinations that do not
    go together.
    """
    request = _parse(TranscriptionRequest, fields)
    if "timestamp_granularities" in request.model_fields_set and request.response_format != "verbose_json":
        raise _refused("timestamp_granularities[]", "needs response_format=verbose_json")
    if request.include and request.response_format != "json":
        raise _refused("include[]", "logprobs requires response_format=json")
    if request.stream and request.response_format not in ("json", "text"):
        raise _refused(
            "stream",
            f"is not supported for response_format={request.response_format}; use json or text, or omit "
            "stream",
        )
    return request


def parse_translation(fields: Mapping[str, list[str]]) -> TranslationRequest:
    """Raises ApiError 400 with `param`, as parse_transcription."""
    return _parse(TranslationRequest, fields)


def _refused(param: str, message: str) -> ApiError:
    return ApiError(400, f"{param} {message}", param=param, code="unsupported_value")


def _parse(kind: type[T], fields: Mapping[str, list[str]]) -> T:
    given: dict[str, Any] = {}
    for sent, values in fields.items():
        name, key = _name(sent, kind)
        if len(values) > 1 and name not in REPEATED:
            raise ApiError(
                400, f"{sent} is given {len(values)} times; give it once", param=sent, code="invalid_value"
            )
        if name in given and not (key and isinstance(given[name], dict)):
            raise ApiError(
                400,
                f"{name} is sent both with and without []; use one form",
                param=sent,
                code="invalid_value",
            )
        if key:
            given[name] = {**given.get(name, {}), key: values[0]}
        elif values != [""]:
            given[name] = values if name in REPEATED else values[0]
    strategy = given.get("chunking_strategy")
    if isinstance(strategy, str) and strategy.lstrip().startswith("{"):
        given["chunking_strategy"] = _object(strategy)
    try:
        return kind(**given)
    except ValidationError as error:
        raise _invalid(error) from error


def _name(sent: str, kind: type[TranslationRequest]) -> tuple[str, str]:
    """What a form calls `include[]` or `chunking_strategy[type]` as a field's name and, in the second case, a
    key in it.
    """
    name, bracket, key = sent.partition("[")
    key = key.removesuffix("]")
    if name in ELSEWHERE:
        raise _refused(sent, "is not supported by Whisper; omit it")
    known = name in kind.model_fields and (
        not bracket
        or (
            sent.endswith("]")
            and (bool(key) if name == "chunking_strategy" else name in REPEATED and not key)
        )
    )
    if not known:
        raise ApiError(400, f"unknown field {sent!r}; remove it", param=sent, code="unknown_parameter")
    return name, key


def _object(text: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise ApiError(
            400,
            'chunking_strategy is not a valid JSON object; send \'auto\' or {"type": "server_vad"}',
            param="chunking_strategy",
            code="invalid_value",
        ) from None


def _invalid(error: ValidationError) -> ApiError:
    first = max(error.errors(), key=lambda row: len(row["loc"]))
    name = str(first["loc"][0])
    param = f"{name}[]" if name in REPEATED else name
    place = next((f"[{part}]" for part in first["loc"][2:]), "") if name == "chunking_strategy" else ""
    return ApiError(400, f"{param}{place}{explained([first])}", param=param, code="invalid_value")


def options(request: TranslationRequest, task: str) -> Options:
    """What the transcriber has to know.

    Raises:
        ApiError: 400 for an unknown language or a prompt with special tokens.
    """
    plain_text(request.prompt, "prompt")
    if request.temperature and (request.beam_width or 1) > 1:
        raise ApiError(
            400,
            "beam_width cannot be combined with temperature; omit one",
            param="beam_width",
            code="unsupported_value",
        )
    words = isinstance(request, TranscriptionRequest) and "word" in request.timestamp_granularities
    return Options(
        task=task,
        language=language_code(request.language) if request.language else None,
        prompt=request.prompt,
        temperature=request.temperature,
        timestamps=request.response_format in TIMED,
        max_tokens=request.max_tokens,
        beam_width=request.beam_width,
        words=words,
        log_probs=isinstance(request, TranscriptionRequest) and bool(request.include),
        previous_text=request.condition_on_previous_text,
        multilingual=request.multilingual,
    )


def plain_text(prompt: str, param: str) -> None:
    """Refuse special tokens: what a user says must not command the decoder.

    Raises:
        ApiError: 400.
    """
    if "<|" in prompt:
        raise ApiError(
            400,
            f"{param} must not contain special tokens such as <|…|>; send plain text",
            param=param,
            code="invalid_value",
        )


def turns(request: TranslationRequest) -> TurnDetection | None:
    """Turns to cut at; None for windows, which are cut where the voice rests: so does `auto`, the default."""
    strategy = request.chunking_strategy if isinstance(request, TranscriptionRequest) else None
    return strategy.turns() if isinstance(strategy, ServerVad) else None
