"""Diarize: from audio to turns."""

from __future__ import annotations

from collections.abc import AsyncIterator

from .clustering import speakers
from .local import Chunk, SpeakerStretch, speech_in
from .model import Count, VoiceModel
from .turns import NOBODY, Diarization, diarization


async def diarize(model: VoiceModel, batches: AsyncIterator[list[Chunk]], count: Count) -> Diarization:
    """Find who speaks in a recording, whose windows (`local.windows`) come in batches; only one batch of
    audio is held.

    Raises:
        ApiError: the model did not answer.
    """
    found: list[SpeakerStretch] = []
    async for batch in batches:
        found += await speech_in(model, batch)
    # Seconds of work for hours of audio.
    return diarization(found, *speakers(found, count)) if found else NOBODY
