"""The configuration of a live session: OpenAI's transcription sessions (openai 3.52.0, types/realtime), as
far as Whisper supports them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, PrivateAttr, ValidationError

from conch.errors import ApiError, invalid
from speech.vad import TurnDetection

from ..audio.schema import MOST_KEYWORDS, prompted, spoken
from ..explanations import fault
from ..fields import Fields

PATH = "session.audio.input.transcription."
# Models of OpenAI that detect no turns: under these names the client commits, unless it asks for detection.
COMMITTED = {"gpt-realtime-whisper", "gpt-live-transcribe"}
# Seconds of silence that end a turn, by how eager a semantic VAD is to end it.
EAGERNESS = {"low": 1.5, "medium": 0.9, "auto": 0.9, "high": 0.5}
# Seconds of new sound before words are looked for again; what two looks agree on is told.
DELAYS = {"minimal": 0.4, "low": 0.6, "medium": 1.0, "high": 1.6, "xhigh": 2.5}


class Pcm(Fields):
    """16-bit little-endian mono audio. OpenAI accepts only 24,000 Hz; another rate saves a resampling."""

    type: Literal["audio/pcm"] = "audio/pcm"
    rate: int = Field(24_000, ge=8_000, le=48_000)


class G711(Fields):
    """Telephone audio at 8,000 Hz: G.711, μ-law or A-law."""

    type: Literal["audio/pcmu", "audio/pcma"]
    rate: Literal[8000] = 8000


Format = Annotated[Pcm | G711, Field(discriminator="type")]


class _Turns(Fields):
    """Fields for models that speak: whether there is an answer, and when."""

    HARMLESS: ClassVar = frozenset({"create_response", "interrupt_response", "idle_timeout_ms"})


class Vad(_Turns):
    """The server ends a turn after silence; by default, as at OpenAI, a little longer than in a recording."""

    type: Literal["server_vad"] = "server_vad"
    threshold: float = Field(0.5, ge=0.0, le=1.0)
    prefix_padding_ms: int = Field(300, ge=0, le=5000)
    silence_duration_ms: int = Field(500, ge=0, le=10_000)

    def turns(self) -> TurnDetection:
        """Return the times in seconds."""
        return TurnDetection(self.threshold, self.prefix_padding_ms / 1000, self.silence_duration_ms / 1000)


class SemanticVad(_Turns):
    """The server waits for the end of a thought: here, for a longer silence."""

    type: Literal["semantic_vad"]
    eagerness: Literal["low", "medium", "high", "auto"] = "auto"

    def turns(self) -> TurnDetection:
        """Return the times in seconds."""
        return TurnDetection(silence=EAGERNESS[self.eagerness])


class NoiseReduction(Fields):
    """Accepted and echoed: Whisper and the voice activity detection cope with noise, and nothing is filtered
    before them.
    """

    type: Literal["near_field", "far_field"] | None = None
    strength: float | None = Field(None, ge=0)


class Transcription(Fields):
    """Model, language (None: detected in each turn, among `languages` if there are any), earlier text, words
    to expect, and how long to wait for words.
    """

    model: str | None = None
    language: str | None = None
    languages: tuple[str, ...] = Field((), max_length=100)
    prompt: str = ""
    keywords: tuple[str, ...] = Field((), max_length=MOST_KEYWORDS)
    delay: Literal["minimal", "low", "medium", "high", "xhigh"] = "low"


class Input(Fields):
    """The audio input; without turn detection the client commits."""

    OFF: ClassVar = frozenset({"noise_reduction", "turn_detection"})

    format: Format = Pcm()
    transcription: Transcription = Transcription()
    turn_detection: Annotated[Vad | SemanticVad, Field(discriminator="type")] | None = Vad()
    noise_reduction: NoiseReduction | None = None


class Audio(Fields):
    """See OpenAI's reference."""

    input: Input = Input()


Judge = Callable[[Transcription], None]


class Session(Fields):
    """The configuration of one connection."""

    HARMLESS: ClassVar = frozenset({"client_secret", "expires_at", "id", "object", "tracing"})

    type: Literal["transcription"] = "transcription"
    audio: Audio = Audio()
    include: tuple[Literal["item.input_audio_transcription.logprobs"], ...] = ()
    _asked: bool = PrivateAttr(default=False)  # whether the client has configured turn detection

    def changed(self, update: Any, judge: Judge = lambda _: None) -> tuple[Session, list[ApiError]]:
        """Apply the valid fields of a session.update, and return why others are not. `judge` raises an
        ApiError that names the field where a deployment cannot do what is requested.

        Raises:
            ApiError: 400: the update is not an object.
        """
        if not isinstance(update, dict):
            raise invalid("session", "session is not an object; send one")
        try:
            refused, left = [], _whole(update)
        except RecursionError:
            message = "session is nested too deeply; send an object like the one in session.created"
            raise invalid("session", message) from None
        for _ in range(MOST_FAULTS):
            old = self.model_dump()
            asked = self._asked or "turn_detection" in _inner(left, "audio", "input")
            if not asked:
                old["audio"]["input"]["turn_detection"] = _usual_turns(_merged(old, left))
            merged = _merged(old, left)
            try:
                changed = Session.model_validate(merged)
                changed._asked = asked
                _checked(changed.audio.input.transcription)
                judge(changed.audio.input.transcription)
            except (ValidationError, ApiError) as error:
                fault, place = _fault(error, merged)
                refused.append(fault)
                left = _without(left, place)
                continue
            return changed, refused
        return self, refused

    def hears_as(self, other: Session) -> bool:
        """Tell whether audio is read and cut the same way; model, language and prompt may differ."""
        mine, theirs = self.audio.input, other.audio.input
        return (mine.format, mine.turn_detection) == (theirs.format, theirs.turn_detection)


MOST_FAULTS = 16  # of one update that are named
DEFAULTS: Mapping[str, Any] = {"format": Pcm().model_dump(), "transcription": {}, "include": []}


def _checked(wanted: Transcription) -> None:
    spoken(wanted.language, wanted.languages, PATH)
    prompted(wanted.prompt, wanted.keywords, PATH)


def _whole(update: Any, name: str = "") -> Any:
    """Complete an update: null stands for the default, except for turn detection and noise reduction, which
    it switches off.
    """
    if isinstance(update, dict):
        if name == "turn_detection":
            update = {"type": "server_vad", **update}
        rows = {key: _whole(value, key) for key, value in update.items()}
        return {key: value for key, value in rows.items() if value is not LEFT_OUT}
    if update is None and name not in ("turn_detection", "noise_reduction", "language"):
        return DEFAULTS.get(name, LEFT_OUT)
    return update


LEFT_OUT = object()


def _inner(update: Any, *names: str) -> dict[str, Any]:
    """Return an object inside an update; an empty one where there is none."""
    for name in names:
        update = update.get(name) if isinstance(update, dict) else None
    return update if isinstance(update, dict) else {}


def _usual_turns(session: Any) -> dict[str, Any] | None:
    """Return the default turn detection, which depends on the client's name for the model."""
    model = _inner(session, "audio", "input", "transcription").get("model")
    committed = isinstance(model, str) and re.sub(r"-\d{4}-\d\d-\d\d$", "", model) in COMMITTED
    return None if committed else Vad().model_dump()


def _merged(old: Any, new: Any) -> Any:
    """Merge `new` into `old`; an object of another type replaces it."""
    if not (isinstance(old, dict) and isinstance(new, dict)):
        return new
    if "type" in old and new.get("type", old["type"]) != old["type"]:
        return new
    return {**old, **{key: _merged(old.get(key), value) for key, value in new.items()}}


def _fault(error: ValidationError | ApiError, update: Any) -> tuple[ApiError, list[str]]:
    """Return what is wrong with an update, and the path of the field to remove."""
    if isinstance(error, ApiError):
        return error, (error.param or "session").removeprefix("session.").split(".")
    found = fault(error.errors(), update)
    place = [part for part in found.path if isinstance(part, str)]
    found = replace(found, path=("session", *found.path))
    return found.error(found.place), place


def _without(update: Any, place: list[str]) -> Any:
    """Return the object without one field, or without its nearest existing parent."""
    if not isinstance(update, dict) or not place or place[0] not in update:
        return {}
    name, *rest = place
    inner = update[name]
    if rest and isinstance(inner, dict) and rest[0] in inner:
        return {**update, name: _without(inner, rest)}
    return {key: value for key, value in update.items() if key != name}


def of_beta(session: Any) -> Any:
    """Convert the beta's `transcription_session.update` to today's form."""
    if not isinstance(session, dict):
        return session
    formats = {
        "pcm16": Pcm().model_dump(),
        "g711_ulaw": {"type": "audio/pcmu"},
        "g711_alaw": {"type": "audio/pcma"},
    }
    names = {
        "input_audio_format": "format",
        "input_audio_transcription": "transcription",
        "turn_detection": "turn_detection",
        "input_audio_noise_reduction": "noise_reduction",
    }
    own = {names[key]: value for key, value in session.items() if key in names}
    if isinstance(form := own.get("format"), str):
        own["format"] = formats.get(form, {"type": form})
    rest = {key: value for key, value in session.items() if key not in names}
    return {**rest, "audio": {"input": own}}
