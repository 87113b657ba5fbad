"""Vectors of known speakers."""

from __future__ import annotations

import numpy as np

from .clustering import speakers
from .local import speech_in, windows
from .model import Count, Floats, VoiceModel
from .tuning import RATE, TUNING


class BadReference(ValueError):
    """Audio that does not contain exactly one voice; the message gives the reason, after the reference's
    name.
    """


async def voice_of(model: VoiceModel, sound: Floats) -> Floats:
    """Return the vector [dimensions], length 1, of the single voice in samples [n] at 16 kHz.

    Raises:
        BadReference: too short, too long, silent, or two voices.
        ApiError: the model did not answer.
    """
    shortest, longest = TUNING.reference
    seconds = len(sound) / RATE
    if not shortest - TUNING.reference_slack <= seconds <= longest + TUNING.reference_slack:
        length = f"longer than {longest:g} s" if seconds > longest else f"{seconds:.1f} s long"
        raise BadReference(f"is {length}; send {shortest:g} to {longest:g} s of one voice")
    found = await speech_in(model, list(windows([sound])))
    spoken = sum(one.clear for one in found)
    if spoken < TUNING.reference_speech:
        raise BadReference(
            f"has {spoken:.1f} s of speech; send {shortest:g} to {longest:g} s in which one person speaks"
        )
    _, voices = speakers(found, Count(speech=TUNING.reference_speech, near=TUNING.reference_voice))
    if len(voices) > 1:
        raise BadReference("has more than one voice; send a part in which only that person speaks")
    return np.asarray(voices[0], np.float32)
