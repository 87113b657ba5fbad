"""Diarize an uploaded recording, in a second pass over the file, in parallel with its transcription."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from itertools import count, islice
from math import inf
from pathlib import Path

import numpy as np

from conch.deployment import Pool
from conch.errors import refused
from conch.names import SPEAKER_EMBEDDING, SPEAKER_SEGMENTATION
from conch.pictures import from_base64
from speech import media
from speech.speakers.diarize import diarize
from speech.speakers.labels import labelled, labels
from speech.speakers.local import Chunk, windows
from speech.speakers.model import Floats
from speech.speakers.references import BadReference, voice_of
from speech.speakers.tuning import TUNING
from speech.speakers.turns import Diarization
from speech.transcript import Transcript

from ..triton import Triton
from .decoding import DECODERS, media_errors
from .speakers import SpeakersWanted

REFERENCES = "known_speaker_references[]"
REMEDY = "send a recording of 2 to 10 s as data:audio/wav;base64,…"


class TritonVoices:
    """A `speech.speakers.model.VoiceModel` over Triton. Its methods raise ApiError if the pool did not
    answer.
    """

    def __init__(self, triton: Triton, pool: Pool, request_id: str) -> None:
        self.triton, self.pool, self.request_id = triton, pool, request_id
        self.numbers = count(1)

    async def segment(self, rows: Floats) -> Floats:
        """See VoiceModel."""
        return await self._infer(SPEAKER_SEGMENTATION, rows, "log_probabilities")

    async def embed(self, rows: Floats) -> Floats:
        """See VoiceModel."""
        return await self._infer(SPEAKER_EMBEDDING, rows, "embedding")

    async def _infer(self, model: str, rows: Floats, output: str) -> Floats:
        number = f"{self.request_id}-v{next(self.numbers)}"
        return (await self.triton.infer(self.pool, model, {"WAV": rows}, [output], number))[output]


@dataclass(frozen=True)
class Diarizer:
    """Diarization for one request.

    Attributes:
        known: vectors [names, dimensions] of the speakers that it names
    """

    model: TritonVoices
    wanted: SpeakersWanted
    known: Floats

    async def speakers_of(self, blocks: Iterator[Floats]) -> Diarization:
        """Diarize the blocks of a file.

        Raises:
            ApiError: 400 if the file is not a recording, or the models of speakers did not answer.
        """
        return await diarize(self.model, _batches(blocks), self.wanted.count)

    def label(self, transcript: Transcript, diarization: Diarization) -> Transcript:
        """Return the transcript with speakers."""
        return labelled(transcript, diarization, labels(diarization.voices, self.wanted.names, self.known))


async def _batches(blocks: Iterator[Floats]) -> AsyncIterator[list[Chunk]]:
    source, loop = windows(blocks), asyncio.get_running_loop()
    with media_errors():
        while batch := await loop.run_in_executor(DECODERS, list, islice(source, TUNING.at_once)):
            yield batch


async def known_voices(model: TritonVoices, references: Sequence[str]) -> Floats:
    """Return vectors [references, dimensions] for data URLs.

    Raises:
        ApiError: 400 for one that does not show one voice.
    """
    return np.array([await _known(model, *one) for one in enumerate(references, 1)], np.float32)


async def _known(model: TritonVoices, number: int, url: str) -> Floats:
    try:
        sound = await asyncio.get_running_loop().run_in_executor(DECODERS, _decoded, url)
        return await voice_of(model, sound)
    except (BadReference, media.BadMedia) as error:
        message = str(error) if isinstance(error, BadReference) else f"cannot be used: {error}"
        raise refused(REFERENCES, f"(number {number}) {message}") from error


def _decoded(url: str) -> Floats:
    """Decode the samples [n] of a data URL.

    Raises:
        BadReference: it is none.
        BadMedia: it holds something else than sound.
    """
    head, comma, _ = url[:200].partition(",")
    if not head.lower().startswith("data:") or not comma or not head.lower().endswith(";base64"):
        raise BadReference(f"is not a base64 data URL; {REMEDY}")
    try:
        content = from_base64(url[len(head) + 1 :])
    except ValueError as error:
        raise BadReference(f"is not valid base64; {REMEDY}") from error
    with tempfile.NamedTemporaryFile(prefix="conch-reference-") as file:
        file.write(content)
        file.flush()
        blocks = media.blocks(Path(file.name), max_seconds=inf, time_limit=10)
        return np.concatenate(list(islice(blocks, 4)))  # 16 s, which are too many
