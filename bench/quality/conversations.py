"""Conversations of neural voices with known speakers, words and times, to evaluate speaker diarization.

Kokoro's voices are split in two disjoint halves: TUNING voices say sentences.txt, JUDGED voices
conversation.txt.
"""

from __future__ import annotations

import subprocess
import tarfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from .recordings import kept, noisy, telephone
from .voices import RATE, Voices

Floats = NDArray[np.float32]
HERE = Path(__file__).parent
PACKAGE = "kokoro-js@1.2.1"  # npm's package with the styles of all voices of Kokoro-82M v1.0, Apache-2.0
_NAMES = (
    "af_alloy af_aoede af_bella af_heart af_jessica af_kore af_nicole af_nova af_river af_sarah "
    "af_sky am_adam am_echo am_eric am_fenrir am_liam am_michael am_onyx am_puck am_santa bf_alice "
    "bf_emma bf_isabella bf_lily bm_daniel bm_fable bm_george bm_lewis"
)
ENGLISH = _NAMES.split()
TUNING, JUDGED = tuple(ENGLISH[::2]), tuple(ENGLISH[1::2])
BACK_CHANNELS = ("Mm-hm.", "Yeah.", "Right.", "I see.", "Okay.", "Sure.", "Exactly.", "Oh, good.")
PAUSE = 0.5  # s: a longer pause inside an utterance is not speech of the reference


@dataclass(frozen=True)
class SpokenTurn:
    """An utterance in a conversation; `start` in seconds, `spans` are its speech."""

    speaker: str
    text: str
    start: float
    end: float
    spans: tuple[tuple[float, float], ...]


@dataclass(frozen=True)
class Conversation:
    """Float32 samples [n] at 16 kHz, peak below 1, with their turns."""

    name: str
    wave: Floats
    turns: tuple[SpokenTurn, ...]

    @property
    def speakers(self) -> tuple[str, ...]:
        """Return the speakers in order of appearance."""
        return tuple(dict.fromkeys(turn.speaker for turn in self.turns))


@dataclass(frozen=True)
class Manner:
    """How people talk. `overlap` is the fraction of turns that start before the last one has ended; `channel`
    is "clean", "noise" (pink, 12 dB below) or "telephone".
    """

    name: str
    speakers: int
    minutes: float
    overlap: float
    channel: str = "clean"


def styles(weights: Path) -> Path:
    """Return the folder of the voices' styles, fetched with npm (which checks the hash).

    Raises:
        subprocess.CalledProcessError: npm could not.
    """
    folder = weights / "voices" / "kokoro-js"
    if not (folder / "package").exists():
        folder.mkdir(parents=True, exist_ok=True)
        command = ["npm", "pack", "--silent", PACKAGE]
        packed = subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True)
        with tarfile.open(folder / packed.stdout.split()[-1]) as archive:
            archive.extractall(folder, filter="data")
    return folder / "package" / "voices"


def _spoken(job: tuple[Path, str, str, float, Path]) -> None:
    weights, voice, text, speed, path = job
    kept(path, lambda: _voices(weights).say(text, voice, speed))


@cache
def _voices(weights: Path) -> Voices:
    return Voices(weights, styles(weights))


def speak(weights: Path, voices: Sequence[str], texts: Sequence[str], processes: int = 2) -> None:
    """Synthesize each text in each voice once, and store it under `weights`."""
    every = (*BACK_CHANNELS, *texts)
    speeds = [float(np.random.default_rng(i).uniform(0.9, 1.15)) for i in range(len(every))]
    jobs = [
        (weights, voice, text, speed, place(weights, voice, text))
        for text, speed in zip(every, speeds, strict=True)
        for voice in voices
    ]
    _spoken(jobs[0])  # fetches the model before several processes would
    with ProcessPoolExecutor(processes) as pool:
        list(pool.map(_spoken, jobs, chunksize=4))


def place(weights: Path, voice: str, text: str) -> Path:
    """Return the file of an utterance."""
    name = "".join(c if c.isalnum() else "-" for c in text.lower())[:60]
    return weights / "voices" / "conversation" / f"{voice}-{name}.npy"


def texts(name: str) -> list[str]:
    """Read the lines of a file of this folder."""
    return (HERE / name).read_text("utf-8").splitlines()


def spans(wave: Floats) -> list[tuple[float, float]]:
    """Return where an utterance is speech, in seconds; pauses shorter than PAUSE are included."""
    frames = np.abs(wave[: len(wave) // 160 * 160]).reshape(-1, 160).max(1) > 0.01 * np.abs(wave).max()
    at = np.flatnonzero(frames)
    cuts = np.flatnonzero(np.diff(at) > PAUSE * 100)
    begins, ends = [at[0], *at[cuts + 1]], [*at[cuts], at[-1]]
    return [(begin / 100, (end + 1) / 100) for begin, end in zip(begins, ends, strict=True)]


def _order(rng: np.random.Generator, count: int) -> Iterator[int]:
    """Order speakers: never the same twice, mostly alternating with the one before the last."""
    weight, last, before = rng.uniform(0.3, 1.0, count), -1, -1
    for first in rng.permutation(count):  # everybody speaks
        yield int(first)
        before, last = last, int(first)
    while True:
        chance = weight * np.where(np.arange(count) == before, 3.0, 1.0)
        chance[last] = 0.0 if count > 1 else 1.0
        chosen = int(rng.choice(count, p=chance / chance.sum()))
        before, last = last, chosen
        yield chosen


def converse(
    weights: Path, manner: Manner, voices: Sequence[str], texts: Sequence[str], seed: int
) -> Conversation:
    """Make a conversation of `manner.speakers` voices from utterances that `speak` has made."""
    rng = np.random.default_rng(seed)
    names = [str(name) for name in rng.permutation(voices)[: manner.speakers]]
    levels = 10 ** (rng.uniform(-8, 0, len(names)) / 20)
    total = int(manner.minutes * 60 * RATE)
    wave, turns, at, order = np.zeros(total + 30 * RATE, np.float32), [], RATE // 2, _order(rng, len(names))

    def put(speaker: int, text: str, start: int, gain: float = 1.0) -> int:
        sound = np.load(place(weights, names[speaker], text)).astype(np.float32)
        wave[start : start + len(sound)] += sound * np.float32(levels[speaker] * gain)
        begin, end = start / RATE, (start + len(sound)) / RATE
        spoken = tuple((begin + a, begin + b) for a, b in spans(sound))
        turns.append(SpokenTurn(names[speaker], text, begin, end, spoken))
        return start + len(sound)

    while at < total - 12 * RATE:
        speaker, began = next(order), at
        for _ in range(int(rng.choice([1, 1, 2, 3]))):
            at = put(speaker, str(rng.choice(texts)), at) + int(rng.uniform(0.1, 0.7) * RATE)
            if at >= total - 8 * RATE:
                break
        if len(names) > 1 and at - began > 5 * RATE and rng.random() < 0.35:
            other = int(rng.choice([i for i in range(len(names)) if i != speaker]))
            put(other, str(rng.choice(BACK_CHANNELS)), int(rng.uniform(began + RATE, at - 2 * RATE)), 0.7)
        early = len(names) > 1 and rng.random() < manner.overlap
        at += int((-rng.uniform(0.6, 2.0) if early else rng.gamma(2.0, 0.25)) * RATE)
    wave = wave[: max(int(turn.end * RATE) for turn in turns) + RATE // 2]
    wave /= max(1.0, float(np.abs(wave).max()) / 0.9)
    ordered = tuple(sorted(turns, key=lambda turn: turn.start))
    found = Conversation(f"{manner.name}-{seed}", wave, ordered)
    if manner.channel == "telephone":
        return replace(found, wave=telephone(wave))
    return replace(found, wave=noisy(wave, 12.0, seed)) if manner.channel == "noise" else found
