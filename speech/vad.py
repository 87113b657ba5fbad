"""Voice activity detection with Silero, and turns from its probabilities."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .silero import CHUNK, Silero
from .tuning import TUNING

RATE = 16_000

Floats = NDArray[np.float32]


class SileroVad(Silero):
    """Speech probabilities of one audio stream, 32 ms at a time."""

    def probabilities(self, chunks: Floats) -> Floats:
        """See Silero: 0 for chunks of digital silence."""
        loud = np.square(chunks).mean(1) >= TUNING.loudness_floor**2
        return np.where(loud, super().probabilities(chunks), np.float32(0))


Span = tuple[float, float]


def spans(probabilities: Floats, begins: float = TUNING.speech_begins) -> Iterator[Span]:
    """Return spans of speech in seconds, of at least three chunks; each starts above the probability
    `begins`. `probabilities` are float32 [chunks of 32 ms].
    """
    begin, last = None, 0
    for i, probability in enumerate([*probabilities.tolist(), *[0.0] * (TUNING.hole_chunks + 1)]):
        if probability >= (begins if begin is None else min(begins, TUNING.speech_goes_on)):
            begin, last = i if begin is None else begin, i
        elif begin is not None and i - last > TUNING.hole_chunks:
            if last + 1 - begin >= TUNING.word_chunks:
                yield begin * CHUNK / RATE, (last + 1) * CHUNK / RATE
            begin = None


def spoken(probabilities: Floats, *, short: bool) -> bool:
    """Tell whether anybody may be speaking, by probabilities [chunks]. `short`: a single word is enough."""
    wanted = (TUNING.word_chunks if short else TUNING.speech_chunks) * CHUNK / RATE
    return any(end - begin >= wanted for begin, end in spans(probabilities))


@dataclass(frozen=True)
class TurnDetection:
    """OpenAI's server_vad: speech starts above `threshold` and has ended after `silence` seconds below it
    (minus 0.15 for hysteresis: silero-vad utils_vad.py); `padding` seconds before and after are included.
    """

    threshold: float = 0.5
    padding: float = 0.3
    silence: float = 0.2
