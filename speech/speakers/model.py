"""The protocol of the models that recognise voices."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from .tuning import TUNING

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class Count:
    """The number of speakers, if known.

    Attributes:
        speech: minimum seconds of speech of each
        near: mean cosine from which two clusters are merged
    """

    least: int = 1
    most: int | None = None
    speech: float = TUNING.least_speech
    near: float = TUNING.near_voice


class VoiceModel(Protocol):
    """The Triton models `speaker_segmentation` and `speaker_embedding`: over Triton in the gateway, in this
    process in a benchmark.
    """

    async def segment(self, rows: Floats) -> Floats:
        """Return log probabilities [rows, FRAMES, 7] for samples [rows, WINDOW] at 16 kHz: nobody speaks, one
        of three local speakers, two of them (01, 02, 12).
        """

    async def embed(self, rows: Floats) -> Floats:
        """Return vectors [rows, dimensions] for samples [rows, n] at 16 kHz, of one voice each."""
