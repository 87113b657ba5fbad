"""Recordings with known words: utterances of free voices and one real speaker, joined with pauses, and made
harder.

The real one is jfk.flac of openai/whisper's tests: John F. Kennedy's inaugural address, in the public domain.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.signal import resample_poly

from ops.demo import JFK
from speech import media

from .voices import NAMES, RATE, Voices

Floats = NDArray[np.float32]
HERE = Path(__file__).parent
JFK_TEXT = (
    "And so, my fellow Americans, ask not what your country can do for you, ask what you can do for your "
    "country."
)


@dataclass(frozen=True)
class Utterance:
    """One sentence by one person: float32 at 16 kHz."""

    text: str
    wave: Floats


@dataclass(frozen=True)
class Recording:
    """Utterances in one recording; `starts` of each in seconds."""

    wave: Floats
    utterances: tuple[Utterance, ...]
    starts: tuple[float, ...]

    @property
    def text(self) -> str:
        """Return its words."""
        return " ".join(utterance.text for utterance in self.utterances)


def trimmed(wave: Floats) -> Floats:
    """Remove the silence at both ends of samples [n]: the utterance then starts where the recording says."""
    loud = np.flatnonzero(np.abs(wave) > 0.05 * np.abs(wave).max())
    return wave[loud[0] : loud[-1] + 1]


def jfk() -> Utterance:
    """Return eleven seconds of a real speaker."""
    return Utterance(JFK_TEXT, media.decode(JFK, max_seconds=60, time_limit=60))


def kept(path: Path, say: Callable[[], Floats]) -> Floats:
    """Return an utterance from its file, which is made of `say` if missing: samples [n] in half precision."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_suffix(".partial.npy")
        np.save(unfinished, say().astype(np.float16))
        unfinished.replace(path)
    return np.asarray(np.load(path), np.float32)


def utterances(weights: Path, most: int | None = None) -> list[Utterance]:
    """Return every sentence, or the first `most`, each in the next voice at its own speed, and the real
    recording. They are synthesized once, then stored next to the weights, so that runs can be compared.
    """
    cache, voices = weights / "voices" / "said", Voices(weights)
    rng, spoken = np.random.default_rng(1), []
    for i, text in enumerate((HERE / "sentences.txt").read_text("utf-8").splitlines()[:most]):
        say = partial(voices.say, text, NAMES[i % len(NAMES)], float(rng.uniform(0.85, 1.15)))
        spoken.append(Utterance(text, kept(cache / f"{i}.npy", say)))
    real = jfk()
    return [*spoken, replace(real, wave=trimmed(real.wave))]


def more(folder: Path | None) -> list[Utterance]:
    """Load a user's own recordings: NAME.wav next to NAME.txt."""
    found = []
    for path in sorted(folder.glob("*.txt")) if folder else ():
        wave = media.decode(path.with_suffix(".wav"), max_seconds=600, time_limit=60)
        found.append(Utterance(path.read_text("utf-8").strip(), trimmed(wave)))
    return found


def join(parts: Sequence[Utterance], pauses: tuple[float, float], seed: int) -> Recording:
    """Join utterances with pauses of random lengths, each speaker at their own level."""
    rng = np.random.default_rng(seed)
    pieces, starts, at = [], [], 0
    for part in parts:
        silence = np.zeros(int(rng.uniform(*pauses) * RATE), np.float32)
        level = np.float32(10 ** (rng.uniform(-6, 0) / 20))
        pieces += [silence, part.wave * level]
        starts.append((at + len(silence)) / RATE)
        at += len(silence) + len(part.wave)
    return Recording(np.concatenate(pieces), tuple(parts), tuple(starts))


def _mixed(wave: Floats, other: Floats, decibels: float) -> Floats:
    """Mix `other` under the speech at a ratio of powers; the level of speech is that of its louder half."""
    power = float(np.quantile(np.square(wave[: len(wave) // 320 * 320].reshape(-1, 320)).mean(1), 0.75))
    scale = np.sqrt(power / max(float(np.square(other).mean()), 1e-12) / 10 ** (decibels / 10))
    mixed = wave + other * np.float32(scale)
    return np.asarray(mixed / max(1.0, float(np.abs(mixed).max())), np.float32)


def pink(count: int, seed: int) -> Floats:
    """Make samples [count] of pink noise, whose power falls with frequency like most noise of rooms and
    streets.
    """
    spectrum = np.fft.rfft(np.random.default_rng(seed).standard_normal(count))
    falling = spectrum / np.sqrt(np.maximum(np.arange(len(spectrum)), 1))
    return np.asarray(np.fft.irfft(falling, count), np.float32)


def music(count: int, seed: int) -> Floats:
    """Make samples [count] of chords that change every second: sawtooth tones with decay."""
    rng, t = np.random.default_rng(seed), np.arange(RATE) / RATE
    beats = []
    for _ in range(count // RATE + 1):
        tones = 220 * 2 ** (np.array([0, 4, 7, 12]) / 12) * 2 ** (rng.integers(-5, 7) / 12)
        beats.append(sum(2 * ((t * tone) % 1) - 1 for tone in tones) * np.exp(-2 * t))
    return np.asarray(np.concatenate(beats)[:count], np.float32)


def noisy(wave: Floats, decibels: float, seed: int = 7) -> Floats:
    """Mix samples [n] with pink noise, so many decibels below them."""
    return _mixed(wave, pink(len(wave), seed), decibels)


def telephone(wave: Floats) -> Floats:
    """Resample samples [n] through 8 kHz."""
    return np.asarray(resample_poly(resample_poly(wave, 1, 2), 2, 1), np.float32)


def conditions(noise: int) -> dict[str, Callable[[Floats], Floats]]:
    """Return what makes samples [n] harder, by name; `noise` is the seed."""
    return {
        "clean": lambda wave: wave,
        "noise at 20 dB": lambda wave: noisy(wave, 20, noise),
        "noise at 12 dB": lambda wave: noisy(wave, 12, noise),
        "music at 15 dB": lambda wave: _mixed(wave, music(len(wave), noise), 15),
        "telephone": telephone,
    }


def clicks(seconds: float, seed: int = 7) -> Floats:
    """Make two clicks per second in faint noise, without speech."""
    rng = np.random.default_rng(seed)
    wave = 1e-3 * rng.standard_normal(int(seconds * RATE))
    for at in rng.integers(0, len(wave) - 200, int(2 * seconds)):
        wave[at : at + 200] += 0.7 * rng.standard_normal(200) * np.exp(-np.arange(200) / 40)
    return np.clip(wave, -1, 1).astype(np.float32)
