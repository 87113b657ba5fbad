"""Form fields about speakers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import BaseModel, Field

from conch.errors import refused
from speech.speakers.model import Count

DIARIZED = "diarized_json"
WITH_SPEAKERS = {"srt", "vtt", "verbose_json", DIARIZED}  # formats with times, and so with room for speakers
MOST_SPEAKERS, MOST_KNOWN = 50, 20


@dataclass(frozen=True)
class SpeakersWanted:
    """What is known of the speakers: how many there are, names of some, and a data URL of each one's voice.
    `asked_by` is the field that requested diarization.
    """

    count: Count
    names: tuple[str, ...]
    references: tuple[str, ...]
    asked_by: str = "response_format"


class SpeakerFields(BaseModel):
    """Form fields; `diarize` and the numbers of speakers are extensions."""

    diarize: bool = False
    num_speakers: int | None = Field(None, ge=1, le=MOST_SPEAKERS)
    min_speakers: int | None = Field(None, ge=1, le=MOST_SPEAKERS)
    max_speakers: int | None = Field(None, ge=1, le=MOST_SPEAKERS)
    known_speaker_names: tuple[Annotated[str, Field(min_length=1, max_length=100)], ...] = Field(
        (), max_length=MOST_KNOWN
    )
    known_speaker_references: tuple[str, ...] = Field((), max_length=MOST_KNOWN)

    def wanted_speakers(self, response_format: str) -> SpeakersWanted | None:
        """Return what is known of the speakers, if diarization is requested."""
        if not self.diarize and response_format != DIARIZED:
            return None
        count = Count(self.num_speakers or self.min_speakers or 1, self.num_speakers or self.max_speakers)
        asked_by = "response_format" if response_format == DIARIZED else "diarize"
        return SpeakersWanted(count, self.known_speaker_names, self.known_speaker_references, asked_by)

    def check_speakers(self, response_format: str) -> None:
        """Refuse fields that conflict.

        Raises:
            ApiError: 400 that names the field.
        """
        if self.diarize and response_format not in WITH_SPEAKERS:
            raise refused(
                "diarize",
                f"needs a format with speakers, which response_format={response_format} is not; use "
                "diarized_json, verbose_json, srt or vtt",
            )
        names, references = self.known_speaker_names, self.known_speaker_references
        asked = {
            "known_speaker_names[]": names,
            "known_speaker_references[]": references,
            "num_speakers": self.num_speakers,
            "min_speakers": self.min_speakers,
            "max_speakers": self.max_speakers,
        }
        given = [name for name, value in asked.items() if value]
        if given and not self.wanted_speakers(response_format):
            raise refused(given[0], "needs response_format=diarized_json or diarize=true")
        if len(names) != len(references):
            raise refused(
                "known_speaker_references[]" if len(names) > len(references) else "known_speaker_names[]",
                f"must be as many as the other: there are {len(names)} names, {len(references)} references",
            )
        if len(set(names)) < len(names):
            raise refused("known_speaker_names[]", "has a name twice; send one reference for each speaker")
        self._check_numbers()

    def _check_numbers(self) -> None:
        fewest, most = self.min_speakers, self.max_speakers
        if self.num_speakers and (fewest or most):
            raise refused("num_speakers", "cannot be combined with min_speakers and max_speakers; omit these")
        if fewest and most and fewest > most:
            raise refused("min_speakers", f"is {fewest}, more than max_speakers={most}; lower it")
