"""Recordings of any length as windows of at most 30 s, cut while the sound comes in: memory holds one window, never the recording."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from .voice import CHUNK, RATE, Turns, TurnTaking, Voice, has_speech

Floats = NDArray[np.float32]

LONGEST = 30 * RATE
SEARCH = 15 * RATE  # where a cut is looked for; the longest pause of 15 s is hardly ever the breath at a comma
FRAME = RATE // 50
CLEAR = 8  # frames: shorter stretches of quiet may be the closure of a t or a k
SHORTEST = RATE


@dataclass(frozen=True)
class Window:
    """A stretch of a recording: float32 samples, and where they begin in seconds."""

    wave: Floats
    start: float


class Cutter(Protocol):
    """Makes windows of blocks of sound."""

    def feed(self, block: Floats) -> Iterator[Window]:
        """Windows that are complete now."""
        ...

    def finish(self) -> Iterator[Window]:
        """What is left at the end."""
        ...


class Pauses:
    """Cuts at pauses. A recording that fits into one window stays whole; of a longer one, windows in which nobody speaks are left out."""

    def __init__(self) -> None:
        self.kept: Floats = np.zeros(0, np.float32)
        self.at = 0

    def feed(self, block: Floats) -> Iterator[Window]:
        """See Cutter."""
        self.kept = np.concatenate([self.kept, block])
        while len(self.kept) > LONGEST:
            yield from self._spoken(*self._take(pause(self.kept[:LONGEST])))

    def finish(self) -> Iterator[Window]:
        """See Cutter."""
        if not self.at:
            yield Window(self.kept, 0.0)
        elif len(self.kept):
            yield from self._spoken(*self._take(len(self.kept)))

    def _take(self, count: int) -> tuple[Floats, int]:
        wave, start = self.kept[:count], self.at
        self.kept, self.at = self.kept[count:], self.at + count
        return wave, start

    @staticmethod
    def _spoken(wave: Floats, start: int) -> Iterator[Window]:
        if has_speech(wave):
            yield Window(wave, start / RATE)


class Spoken:
    """Cuts where a speaker's turn ends (chunking_strategy); silence between turns is left out. A turn of over 30 s is cut at a pause."""

    def __init__(self, turns: Turns) -> None:
        self.turns = turns
        self.taking = TurnTaking(turns)
        self.kept: Floats = np.zeros(0, np.float32)
        self.at = 0  # the sample where `kept` begins
        self.heard = 0  # samples that were judged
        self.speaking = False

    def feed(self, block: Floats) -> Iterator[Window]:
        """See Cutter."""
        self.kept = np.concatenate([self.kept, block])
        for began, ended in self.taking.feed(block):
            self.heard += CHUNK
            if began:
                self._forget(self.heard - CHUNK)
                self.speaking = True
            while self.speaking and self.heard - self.at > LONGEST - CHUNK:
                yield self._take(pause(self.kept[:LONGEST]))
            if ended:
                yield self._take(self.heard - self.at)
                self.speaking = False
        if not self.speaking:
            self._forget(self.heard)

    def finish(self) -> Iterator[Window]:
        """See Cutter."""
        while self.speaking and len(self.kept) > LONGEST:
            yield self._take(pause(self.kept[:LONGEST]))
        if self.speaking:
            yield self._take(len(self.kept))

    def _forget(self, until: int) -> None:
        """Drop what lies before `until`, but for the padding."""
        drop = max(0, until - int(self.turns.padding * RATE) - self.at)
        self.kept, self.at = self.kept[drop:], self.at + drop

    def _take(self, count: int) -> Window:
        window = Window(self.kept[:count], self.at / RATE)
        self.kept, self.at = self.kept[count:], self.at + count
        return window


def pause(wave: Floats) -> int:
    """The best sample to cut at: the middle of the longest clear pause in the last 15 s, else anywhere, else where the voice rests, else the
    quietest 20 ms of the last 15 s.
    """
    late = len(wave) - SEARCH if len(wave) > SEARCH + SHORTEST else SHORTEST // 2
    quiet = _quiet(wave)
    for first, frames in ((late // FRAME, quiet[late // FRAME :]), (SHORTEST // FRAME, quiet[SHORTEST // FRAME :])):
        begin, end = _longest(frames)
        if end - begin >= CLEAR:
            return (first + (begin + end) // 2) * FRAME
    resting = np.array([probability < 0.35 for probability in Voice().probabilities(wave[late:])])
    begin, end = _longest(resting)
    if end - begin >= 3:
        return late + (begin + end) // 2 * CHUNK
    energy = _energy(wave[late:])
    return late + int(energy.argmin()) * FRAME + FRAME // 2


def _energy(wave: Floats) -> Floats:
    """Mean square of every 20 ms."""
    energy: Floats = np.square(wave[: len(wave) // FRAME * FRAME].reshape(-1, FRAME)).mean(1)
    return energy


def _quiet(wave: Floats) -> NDArray[np.bool_]:
    """Which 20 ms lie 20 dB below loud speech, or next to the quietest."""
    energy = _energy(wave)
    quiet: NDArray[np.bool_] = energy <= max(float(np.quantile(energy, 0.9)) * 1e-2, float(energy.min()) * 1.5)
    return quiet


def _longest(flags: NDArray[np.bool_]) -> tuple[int, int]:
    """The longest run of true flags, as first and end; (0, 0) if there is none."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], flags, [False]]).astype(np.int8)))
    runs = edges.reshape(-1, 2)
    if not len(runs):
        return 0, 0
    begin, end = runs[(runs[:, 1] - runs[:, 0]).argmax()]
    return int(begin), int(end)


def halves(window: Window) -> tuple[Window, Window]:
    """A window in two at the best pause of its middle half."""
    quarter = len(window.wave) // 4
    middle = window.wave[quarter : 3 * quarter]
    begin, end = _longest(_quiet(middle))
    at = quarter + (begin + end) // 2 * FRAME
    return Window(window.wave[:at], window.start), Window(window.wave[at:], window.start + at / RATE)
