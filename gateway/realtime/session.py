"""The configuration of a live session: OpenAI's transcription sessions, as far as Whisper goes."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ..audio.languages import language_code
from ..audio.schema import ServerVad, plain_text
from ..errors import ApiError, explained


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Pcm(_Strict):
    """Sound as 16-bit little-endian mono. OpenAI knows 24,000 only; the lower rates save a resampling."""

    type: Literal["audio/pcm"] = "audio/pcm"
    rate: Literal[24000, 16000, 8000] = 24000


class Vad(ServerVad):
    """Who decides that a turn is over: the server. Live, it waits a little longer than in a recording, as
    OpenAI's does.
    """

    type: Literal["server_vad"] = "server_vad"
    silence_duration_ms: int = Field(500, ge=32, le=10_000)


class Transcription(_Strict):
    """Model, language (None: detected anew in each turn) and earlier text."""

    model: str | None = None
    language: str | None = None
    prompt: str = ""


class Input(_Strict):
    """What comes in; without turn detection the client commits."""

    format: Pcm = Pcm()
    transcription: Transcription = Transcription()
    turn_detection: Vad | None = Vad()


class Audio(_Strict):
    """See OpenAI's reference."""

    input: Input = Input()


class Session(_Strict):
    """The configuration of one connection."""

    type: Literal["transcription"] = "transcription"
    audio: Audio = Audio()

    def changed(self, update: Any) -> Session:
        """With the fields of a session.update.

        Raises:
            ApiError: 400 that names the field.
        """
        try:
            changed = Session.model_validate(_merged(self.model_dump(), update))
        except ValidationError as error:
            first = max(error.errors(), key=lambda row: len(row["loc"]))
            param = ".".join(["session", *map(str, first["loc"])])
            raise ApiError(400, f"{param}{explained([first])}", param=param, code="invalid_value") from error
        wanted = changed.audio.input.transcription
        plain_text(wanted.prompt, "session.audio.input.transcription.prompt")
        if wanted.language:
            language_code(wanted.language)
        return changed

    def hears_as(self, other: Session) -> bool:
        """Whether sound is taken and cut the same way; model, language and prompt may differ."""
        mine, theirs = self.audio.input, other.audio.input
        return (mine.format, mine.turn_detection) == (theirs.format, theirs.turn_detection)


def _merged(old: Any, new: Any) -> Any:
    return (
        {**old, **{key: _merged(old.get(key), value) for key, value in new.items()}}
        if isinstance(old, dict) and isinstance(new, dict)
        else new
    )
