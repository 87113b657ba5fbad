"""What knows voices, as the rest of this package sees it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from .tuning import TUNING

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class Count:
    """How many speakers there are, if that is known. `speech`: seconds that each has at least; `near`: mean
    cosine from which two clusters are one.
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
        """Log probabilities [rows, FRAMES, 7] of samples [rows, WINDOW] at 16 kHz: nobody speaks, one of
        three local speakers, two of them (01, 02, 12).
        """

    async def embed(self, rows: Floats) -> Floats:
        """Vectors [rows, dimensions] of samples [rows, n] at 16 kHz, of one voice each."""
