"""Form fields of the audio routes as typed requests. OpenAI's fields that Whisper cannot support are refused
by name, never ignored.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, Field, ValidationError

from conch.errors import ApiError, invalid, refused, unknown
from speech.options import Options
from speech.vad import TurnDetection

from ..explanations import fault
from ..fields import Only, kept
from .languages import language_code
from .speakers import DIARIZED, WITH_SPEAKERS, SpeakerFields, SpeakersWanted

Format = Literal["json", "text", "srt", "vtt", "verbose_json"]


class ServerVad(BaseModel, extra="forbid"):
    """OpenAI's server_vad: the object of chunking_strategy, and a live session's turn detection."""

    type: Literal["server_vad"]
    threshold: float = Field(0.5, gt=0.0, lt=1.0)
    prefix_padding_ms: int = Field(300, ge=0, le=5000)
    silence_duration_ms: int = Field(200, ge=32, le=10_000)

    def turns(self) -> TurnDetection:
        """Return the times in seconds."""
        return TurnDetection(self.threshold, self.prefix_padding_ms / 1000, self.silence_duration_ms / 1000)


MOST_KEYWORDS = 100
# What clients of other servers call ours, and what those of faster-whisper and whisper.cpp may ask of them.
RENAMED = {
    "hotwords": "keywords",
    "initial_prompt": "prompt",
    "beam_size": "beam_width",
    "num_beams": "beam_width",
    "max_new_tokens": "max_tokens",
    "max_completion_tokens": "max_tokens",
}
HARMLESS = frozenset({"batch_size", "temperature_inc", "user", "vad_filter", "verbose"})
RETRIED = "is not a setting here: doubtful texts are asked for again by Whisper's own rules; omit it"
NEUTRAL = {
    "best_of": Only(("1", "5"), "is not supported; use beam_width"),
    "chunk_length": Only(("30",), "must be 30; omit it"),
    "clip_timestamps": Only(("", "0"), "is not supported; send the part of the recording that is wanted"),
    "compression_ratio_threshold": Only(("2.4",), RETRIED),
    "hallucination_silence_threshold": Only((), RETRIED),
    "length_penalty": Only(("1", "1.0"), "is not supported; omit it"),
    "log_prob_threshold": Only(("-1", "-1.0"), RETRIED),
    "logprob_threshold": Only(("-1", "-1.0"), RETRIED),
    "n": Only(("1",), "must be 1; omit it"),
    "no_repeat_ngram_size": Only(("0",), "is not supported; omit it"),
    "no_speech_threshold": Only(("0.6",), RETRIED),
    "patience": Only(("1", "1.0"), "is not supported; omit it"),
    "repetition_penalty": Only(("1", "1.0"), "is not supported; omit it"),
    "seed": Only((), "is not supported; use temperature=0, which is repeatable"),
    "suppress_tokens": Only(("-1",), "is not supported; omit it"),
    "task": Only(
        ("transcribe",), "must be transcribe; for English send the recording to /v1/audio/translations"
    ),
    "top_p": Only(("1", "1.0"), "is not supported; omit it"),
    "translate": Only(
        ("false", "False", "0"), "must be false; for English send the recording to /v1/audio/translations"
    ),
    "vad_parameters": Only((), "is not supported; use chunking_strategy"),
    "without_timestamps": Only(("false", "False", "0"), "must be false; response_format=text has none"),
}


class TranslationRequest(BaseModel, extra="forbid"):
    """Fields of /v1/audio/translations, besides the file. Those from `language` on are extensions.
    `audio_track` chooses a file's track, from 1; by default the one that a player plays.
    """

    model: str
    prompt: str = ""
    response_format: Format = "json"
    temperature: float = Field(0.0, ge=0.0, le=1.0)
    language: str | None = None
    max_tokens: int | None = Field(None, ge=1, le=4096)
    beam_width: int | None = Field(None, ge=1, le=16)
    condition_on_previous_text: bool = False
    multilingual: bool = False
    audio_track: int | None = Field(None, ge=1, le=1000)


class TranscriptionRequest(TranslationRequest, SpeakerFields):
    """Fields of /v1/audio/transcriptions, besides the file."""

    response_format: Format | Literal["diarized_json"] = "json"  # type: ignore[assignment]
    timestamp_granularities: tuple[Literal["word", "segment"], ...] = Field(("segment",), min_length=1)
    keywords: tuple[str, ...] = Field((), max_length=MOST_KEYWORDS)
    languages: tuple[str, ...] = Field((), max_length=100)
    include: tuple[Literal["logprobs"], ...] = ()
    chunking_strategy: Literal["auto"] | ServerVad | None = None
    stream: bool = False

    def speakers(self) -> SpeakersWanted | None:
        """Return what is known of the speakers, if diarization is requested."""
        return self.wanted_speakers(self.response_format)


REPEATED = (
    "timestamp_granularities",
    "include",
    "keywords",
    "languages",
    "known_speaker_names",
    "known_speaker_references",
)
T = TypeVar("T", bound=TranslationRequest)


def body_schema(kind: type[TranslationRequest]) -> dict[str, Any]:
    """Describe the form for OpenAPI; OpenAI's names of repeated fields end in []."""
    schema = kind.model_json_schema(ref_template="#/components/schemas/{model}")
    vad = schema.pop("$defs", {}).get("ServerVad")
    fields = {
        f"{name}[]" if name in REPEATED else name: {**row} for name, row in schema["properties"].items()
    }
    if vad:
        fields["chunking_strategy"]["anyOf"] = [{"const": "auto", "type": "string"}, vad, {"type": "null"}]
    properties = {"file": {"type": "string", "format": "binary"}, **fields}
    form = {
        "title": kind.__name__,
        "type": "object",
        "properties": properties,
        "required": ["file", "model"],
        "additionalProperties": False,
    }
    return {"requestBody": {"required": True, "content": {"multipart/form-data": {"schema": form}}}}


def parse_transcription(fields: Mapping[str, list[str]]) -> TranscriptionRequest:
    """Parse the form. Raises ApiError 400 with `param`: unknown, repeated or malformed fields, and
    combinations that conflict.
    """
    request = _parse(TranscriptionRequest, fields)
    if "timestamp_granularities" in request.model_fields_set and request.response_format != "verbose_json":
        raise refused("timestamp_granularities[]", "needs response_format=verbose_json")
    if request.include and request.response_format != "json":
        raise refused("include[]", "logprobs requires response_format=json")
    if request.stream and request.response_format not in ("json", "text", DIARIZED):
        raise refused(
            "stream",
            f"is not supported for response_format={request.response_format}; use json, text or "
            "diarized_json, or omit stream",
        )
    request.check_speakers(request.response_format)
    return request


def parse_translation(fields: Mapping[str, list[str]]) -> TranslationRequest:
    """Parse the form. Raises ApiError 400 with `param`, as parse_transcription."""
    return _parse(TranslationRequest, fields)


def _parse(kind: type[T], fields: Mapping[str, list[str]]) -> T:
    given: dict[str, Any] = {}
    for sent, values in _meant(fields, kind).items():
        name, key = _name(sent, kind)
        if len(values) > 1 and name not in REPEATED:
            raise invalid(sent, f"{sent} is given {len(values)} times; give it once")
        if name in given and not (key and isinstance(given[name], dict)):
            raise invalid(sent, f"{name} is sent both with and without []; use one form")
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
        raise _invalid(error, given) from error


def _meant(fields: Mapping[str, list[str]], kind: type[TranslationRequest]) -> dict[str, list[str]]:
    """Return the fields under Conch's names, without those that ask for the default behaviour."""
    plain = {
        name: values[-1] for name, values in fields.items() if name.partition("[")[0] in {*HARMLESS, *NEUTRAL}
    }
    kept({name.partition("[")[0]: value or None for name, value in plain.items()}, HARMLESS, NEUTRAL)
    found: dict[str, list[str]] = {}
    for name, values in fields.items():
        own = RENAMED.get(name, name)
        if name in plain or (own != name and own not in kind.model_fields):
            continue
        if own in fields and own != name:
            raise invalid(name, f"{name} is {own} by another name; send one of them")
        found[own] = values
    return _with_words(found)


def _with_words(fields: dict[str, list[str]]) -> dict[str, list[str]]:
    """Turn `word_timestamps`, which other servers have, into a granularity."""
    wanted = fields.pop("word_timestamps", ["false"])[-1].lower() in ("true", "1")
    if not wanted:
        return fields
    if fields.get("response_format") != ["verbose_json"]:
        raise refused(
            "word_timestamps",
            "needs response_format=verbose_json (here it is timestamp_granularities[]=word)",
        )
    name = next(
        (name for name in fields if name.startswith("timestamp_granularities")), "timestamp_granularities[]"
    )
    return {**fields, name: [*dict.fromkeys([*fields.get(name, ["segment"]), "word"])]}


def _name(sent: str, kind: type[TranslationRequest]) -> tuple[str, str]:
    """Split `include[]` or `chunking_strategy[type]` into a field's name and, in the second case, a key in
    it.
    """
    name, bracket, key = sent.partition("[")
    key = key.removesuffix("]")
    known = name in kind.model_fields and (
        not bracket
        or (
            sent.endswith("]")
            and (bool(key) if name == "chunking_strategy" else name in REPEATED and not key)
        )
    )
    if not known:
        raise unknown(sent, sent)
    return name, key


def _object(text: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise invalid(
            "chunking_strategy",
            'chunking_strategy is not a valid JSON object; send \'auto\' or {"type": "server_vad"}',
        ) from None


def _invalid(error: ValidationError, given: Mapping[str, Any]) -> ApiError:
    found = fault(error.errors(), given)
    name, *inner = (str(part)[:80] for part in found.path)
    param = f"{name}[]" if name in REPEATED else name
    return found.error(param, param + "".join(f"[{part}]" for part in inner if name == "chunking_strategy"))


def options(request: TranslationRequest, task: str) -> Options:
    """Return the transcriber's options.

    Raises:
        ApiError: 400 for an unknown language or a prompt with special tokens.
    """
    own = request if isinstance(request, TranscriptionRequest) else None
    keywords, several = (own.keywords, own.languages) if own else ((), ())
    language, languages = spoken(request.language, several)
    if request.temperature and (request.beam_width or 1) > 1:
        raise refused("beam_width", "cannot be combined with temperature; omit one")
    words = own is not None and "word" in own.timestamp_granularities
    return Options(
        task=task,
        language=language,
        prompt=prompted(request.prompt, keywords),
        temperature=request.temperature,
        timestamps=request.response_format in WITH_SPEAKERS,
        max_tokens=request.max_tokens,
        beam_width=request.beam_width,
        words=words,
        log_probs=own is not None and bool(own.include),
        previous_text=request.condition_on_previous_text,
        multilingual=request.multilingual,
        languages=languages,
    )


def spoken(
    language: str | None, languages: Sequence[str], path: str = ""
) -> tuple[str | None, tuple[str, ...]]:
    """Return the codes of the language and of those that detection chooses among. A single one needs no
    detection. `path` precedes their names in errors.

    Raises:
        ApiError: 400 for an unknown language, or one that is not among the others.
    """
    one = language_code(language, f"{path}language") if language else None
    several = tuple(
        dict.fromkeys(language_code(name, f"{path}languages") or "" for name in languages if name)
    )
    if "" in several:
        several = ()
    if one and several and one not in several:
        raise refused(f"{path}language", f"is {language}, which is not among languages; omit one of them")
    return (one or several[0], ()) if one or len(several) == 1 else (None, several)


def prompted(prompt: str, keywords: Sequence[str], path: str = "") -> str:
    """Return a prompt that ends with the keywords, since Whisper drops the start of a prompt that is too
    long.

    Raises:
        ApiError: 400 for special tokens.
    """
    plain_text(prompt, f"{path}prompt")
    for word in keywords:
        plain_text(word, f"{path}keywords")
    listed = ", ".join(word.strip() for word in keywords if word.strip())
    return " ".join(part for part in (prompt.strip(), listed and f"{listed}.") if part)


def plain_text(prompt: str, param: str) -> None:
    """Refuse special tokens: user text must not control the decoder.

    Raises:
        ApiError: 400.
    """
    if "<|" in prompt:
        raise invalid(param, f"{param} must not contain special tokens such as <|…|>; send plain text")


def turns(request: TranslationRequest) -> TurnDetection | None:
    """Return the turn detection; None for windows, which are cut at pauses, as with `auto`, the default."""
    strategy = request.chunking_strategy if isinstance(request, TranscriptionRequest) else None
    return strategy.turns() if isinstance(strategy, ServerVad) else None
