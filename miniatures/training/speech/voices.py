"""espeak-ng as a source of speech: voices, and utterances at 16 kHz trimmed to the spoken part."""

from __future__ import annotations

import io
import itertools
import random
import subprocess
import wave
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.signal import resample_poly

from .sentences import LEXICON

RATE = 16_000
ACCENTS = {"en": ("en-us", "en-gb", "en-gb-x-rp", "en-gb-scotland", "en-029"), "es": ("es", "es-419")}


@dataclass(frozen=True)
class Voice:
    """How espeak-ng is to speak: name (accent+variant), words per minute, pitch 0..99, gap between words in
    10 ms.
    """

    name: str
    speed: int
    pitch: int
    gap: int


def draw_voice(rng: random.Random, language: str, *, unseen: bool) -> Voice:
    """A random voice of the language; unseen ones are never used in training. Every fourth speaker leaves
    gaps between words.
    """
    variant = rng.choice(LEXICON["unseen_variants" if unseen else "seen_variants"])
    gap = rng.randint(3, 30) if rng.random() < 0.25 else rng.choice([0, 0, 0, 1, 2])
    name = f"{rng.choice(ACCENTS[language])}+{variant}"
    return Voice(name, rng.randint(120, 215), rng.randint(25, 75), gap)


def speak(text: str, voice: Voice) -> NDArray[np.float32]:
    """Say `text`: mono float32 at 16 kHz, peak about 0.5, silence at both ends removed.

    Raises:
        RuntimeError: espeak-ng is missing or produced nothing.
    """
    options = {"-v": voice.name, "-s": str(voice.speed), "-p": str(voice.pitch), "-g": str(voice.gap)}
    command = ["espeak-ng", *itertools.chain(*options.items()), "--stdout", text]
    try:
        raw = subprocess.run(command, check=True, capture_output=True).stdout
    except FileNotFoundError:
        raise RuntimeError("espeak-ng is not installed; on Debian: apt-get install espeak-ng") from None
    with wave.open(io.BytesIO(raw)) as file:
        rate = file.getframerate()
    # Written to a pipe, the RIFF header carries no valid length: take everything after its 44 bytes.
    samples = np.frombuffer(raw[44 : len(raw) // 2 * 2], "<i2").astype(np.float64) / 32768
    return _trim(resample_poly(samples, RATE, rate).astype(np.float32))


def _trim(samples: NDArray[np.float32]) -> NDArray[np.float32]:
    if samples.size == 0 or not samples.any():
        raise RuntimeError("espeak-ng produced no sound")
    samples = samples / np.abs(samples).max() * 0.5
    loud = np.flatnonzero(np.abs(samples) > 0.005)
    return samples[loud[0] : loud[-1] + 1]
