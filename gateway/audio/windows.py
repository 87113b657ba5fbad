"""Recordings of any length as windows of at most 30 s, cut while the sound comes in: memory holds one window,
never the recording.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from .silero import CHUNK
from .vad import GOES_ON, RATE, SileroVad, Span, TurnDetection, TurnDetector, spans, spoken

Floats = NDArray[np.float32]

SECONDS = 30
LONGEST = SECONDS * RATE
CHUNKS = LONGEST // CHUNK  # in a window
LATE = (
    CHUNKS // 2
)  # where a cut is looked for; the longest pause of 15 s is hardly ever the breath at a comma
AT_ONCE = (
    RATE // CHUNK
)  # chunks that are taken in together; windows do not depend on how a recording was delivered
FRAME = RATE // 50
CLEAR = 8  # frames: shorter stretches of quiet may be the closure of a t or a k
RESTS = 5  # chunks in which the voice rests: 0.16 s
SILENT = 0.2  # probability of speech under which a chunk of a long silence may be left out
KEPT = 16  # chunks of it that stay at either side: 0.5 s
SHORT = 2 * RATE  # a recording in which a single word counts as speech


@dataclass(frozen=True)
class Window:
    """A stretch of a recording: float32 samples, and where they begin in seconds.

    `speech`: where a voice is heard, in seconds of the window. `gaps`: (seconds of the window, seconds of the
    recording left out there).
    """

    wave: Floats
    start: float
    speech: tuple[Span, ...] = ()
    gaps: tuple[Span, ...] = ()

    @property
    def seconds(self) -> float:
        """Its length."""
        return len(self.wave) / RATE

    def time(self, at: float, *, end: bool = False) -> float:
        """Seconds of the window as seconds of the recording. What ends at a gap ends before it."""
        return (
            self.start
            + at
            + sum(left_out for place, left_out in self.gaps if (place < at if end else place <= at))
        )

    def part(self, begin: float, end: float) -> Window:
        """What lies between two times of the window."""
        a, b = (int(min(max(at, 0.0), self.seconds) * RATE) for at in (begin, end))
        first, last = a / RATE, b / RATE
        speech = tuple(
            (max(x, first) - first, min(y, last) - first) for x, y in self.speech if x < last and y > first
        )
        gaps = tuple((place - first, left_out) for place, left_out in self.gaps if first < place < last)
        return Window(self.wave[a:b], self.time(first), speech, gaps)


class Cutter(Protocol):
    """Makes windows of blocks of sound."""

    def feed(self, block: Floats) -> Iterator[Window]:
        """Windows that are complete now."""
        ...

    def finish(self) -> Iterator[Window]:
        """What is left at the end."""
        ...


@dataclass
class Heard:
    """Sound that is in no window yet: chunks, the probability of speech in each, and their places in the
    recording.
    """

    chunks: Floats = field(default_factory=lambda: np.zeros((0, CHUNK), np.float32))
    probabilities: Floats = field(default_factory=lambda: np.zeros(0, np.float32))
    places: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))

    def __len__(self) -> int:
        return len(self.chunks)

    def add(self, chunks: Floats, probabilities: Floats, place: int) -> None:
        """Chunks of which the first is number `place` of the recording."""
        self.chunks = np.concatenate([self.chunks, chunks])
        self.probabilities = np.concatenate([self.probabilities, probabilities])
        self.places = np.concatenate([self.places, np.arange(place, place + len(chunks))])

    def keep(self, which: NDArray[np.bool_]) -> None:
        """Forget the other chunks."""
        self.chunks, self.probabilities, self.places = (
            self.chunks[which],
            self.probabilities[which],
            self.places[which],
        )

    def shorten(self) -> None:
        """Leave out the middle of a long silence at the end of what was heard."""
        sounding = np.flatnonzero(self.probabilities >= SILENT)
        silence = len(self) - (int(sounding[-1]) + 1 if len(sounding) else 0)
        if silence > 2 * KEPT:
            which = np.ones(len(self), np.bool_)
            which[len(self) - silence + KEPT : len(self) - KEPT] = False
            self.keep(which)

    def take(self, count: int, samples: int | None = None) -> Window:
        """The first chunks as a window, of which `samples` are sound."""
        places, probabilities = self.places[:count], self.probabilities[:count]
        jumps = np.flatnonzero(np.diff(places) > 1)
        gaps = tuple(
            ((int(i) + 1) * CHUNK / RATE, float(places[i + 1] - places[i] - 1) * CHUNK / RATE) for i in jumps
        )
        window = Window(
            self.chunks[:count].reshape(-1)[:samples],
            float(places[0]) * CHUNK / RATE,
            tuple(spans(probabilities)),
            gaps,
        )
        self.chunks, self.probabilities, self.places = (
            self.chunks[count:],
            self.probabilities[count:],
            self.places[count:],
        )
        return window

    def cut(self) -> int:
        """After how many chunks a window ends best: in the middle of the longest rest of the voice in its
        last 15 s, else as `pause` says.
        """
        count = min(len(self), CHUNKS)
        begin, end = _longest(self.probabilities[LATE:count] < GOES_ON)
        if end - begin >= RESTS:
            return LATE + (begin + end) // 2
        return max(1, pause(self.chunks[:count].reshape(-1)) // CHUNK)


class PauseCutter:
    """Cuts where the voice rests. Silence of more than a second is shortened to one, and windows in which
    nobody speaks are left out.
    """

    def __init__(self) -> None:
        self.voice, self.heard = SileroVad(), Heard()
        self.waiting: Floats = np.zeros(0, np.float32)
        self.judged = 0  # chunks
        self.samples = 0

    def feed(self, block: Floats) -> Iterator[Window]:
        """See Cutter."""
        self.samples += len(block)
        self.waiting = np.concatenate([self.waiting, block])
        yield from self._listen(len(self.waiting) // CHUNK // AT_ONCE * AT_ONCE)

    def _listen(self, count: int) -> Iterator[Window]:
        """To the next `count` chunks: judged together, which is faster, and taken in a second at a time."""
        wave, self.waiting = self.waiting[: count * CHUNK], self.waiting[count * CHUNK :]
        chunks, probabilities = wave.reshape(count, CHUNK), self.voice.probabilities(wave)
        for at in range(0, count, AT_ONCE):
            self.heard.add(chunks[at : at + AT_ONCE], probabilities[at : at + AT_ONCE], self.judged)
            self.judged += len(chunks[at : at + AT_ONCE])
            self.heard.shorten()
            while len(self.heard) > CHUNKS:
                yield from self._spoken(self.heard.cut())

    def finish(self) -> Iterator[Window]:
        """See Cutter."""
        left = -(-len(self.waiting) // CHUNK)
        missing = left * CHUNK - len(self.waiting)
        if left:
            self.waiting = np.pad(self.waiting, (0, missing))
            yield from self._listen(left)
        if len(self.heard):
            yield from self._spoken(len(self.heard), len(self.heard) * CHUNK - missing)

    def _spoken(self, count: int, samples: int | None = None) -> Iterator[Window]:
        voice = spoken(self.heard.probabilities[:count], short=self.samples <= SHORT)
        window = self.heard.take(count, samples)
        if voice:
            yield window


class TurnCutter:
    """Cuts where a speaker's turn ends (server_vad); silence between turns is left out. A turn of over 30 s
    is cut where the voice rests.
    """

    def __init__(self, turns: TurnDetection) -> None:
        self.turns, self.taking, self.heard = turns, TurnDetector(turns), Heard()
        self.padding = int(turns.padding * RATE) // CHUNK
        self.waiting: Floats = np.zeros(0, np.float32)
        self.judged = 0
        self.speaking = False

    @property
    def at(self) -> int:
        """The sample where the turn that is going on began."""
        return int(self.heard.places[0]) * CHUNK if len(self.heard) else self.judged * CHUNK

    @property
    def kept(self) -> Floats:
        """The turn that is going on, so far."""
        return np.concatenate([self.heard.chunks.reshape(-1), self.waiting])

    def feed(self, block: Floats) -> Iterator[Window]:
        """See Cutter."""
        self.waiting = np.concatenate([self.waiting, block])
        count = len(self.waiting) // CHUNK
        chunks, self.waiting = (
            self.waiting[: count * CHUNK].reshape(count, CHUNK),
            self.waiting[count * CHUNK :],
        )
        for chunk, (probability, began, ended) in zip(
            chunks, self.taking.feed(chunks.reshape(-1)), strict=True
        ):
            if began:
                self._forget()
                self.speaking = True
            self.heard.add(chunk[None], np.array([probability], np.float32), self.judged)
            self.judged += 1
            while self.speaking and len(self.heard) > CHUNKS:
                yield self.heard.take(self.heard.cut())
            if ended:
                yield self.heard.take(len(self.heard))
                self.speaking = False
        if not self.speaking:
            self._forget()

    def finish(self) -> Iterator[Window]:
        """See Cutter."""
        if self.speaking:
            samples = len(self.heard) * CHUNK + len(self.waiting)
            self.heard.add(
                np.pad(self.waiting, (0, CHUNK - len(self.waiting)))[None],
                np.zeros(1, np.float32),
                self.judged,
            )
            yield self.heard.take(len(self.heard), samples)

    def _forget(self) -> None:
        """Drop what lies before the next turn, but for the padding."""
        which = np.zeros(len(self.heard), np.bool_)
        which[max(0, len(self.heard) - self.padding) :] = True
        self.heard.keep(which)


def pause(wave: Floats) -> int:
    """The best sample to cut at where the voice never rests: the middle of the longest clear pause in the
    last 15 s, else anywhere, else the quietest 20 ms of the last 15 s.
    """
    late = LATE * CHUNK if len(wave) > LATE * CHUNK + RATE else RATE // 2
    quiet = _quiet(wave)
    for first, frames in ((late // FRAME, quiet[late // FRAME :]), (RATE // FRAME, quiet[RATE // FRAME :])):
        begin, end = _longest(frames)
        if end - begin >= CLEAR:
            return (first + (begin + end) // 2) * FRAME
    energy = _energy(wave[late:])
    return late + int(energy.argmin()) * FRAME + FRAME // 2


def _energy(wave: Floats) -> Floats:
    """Mean square of every 20 ms."""
    energy: Floats = np.square(wave[: len(wave) // FRAME * FRAME].reshape(-1, FRAME)).mean(1)
    return energy


def _quiet(wave: Floats) -> NDArray[np.bool_]:
    """Which 20 ms lie 20 dB below loud speech, or next to the quietest."""
    energy = _energy(wave)
    quiet: NDArray[np.bool_] = energy <= max(
        float(np.quantile(energy, 0.9)) * 1e-2, float(energy.min()) * 1.5
    )
    return quiet


def _longest(flags: NDArray[np.bool_]) -> tuple[int, int]:
    """The longest run of true flags, as first and end; (0, 0) if there is none."""
    runs = _runs(flags)
    if not len(runs):
        return 0, 0
    begin, end = runs[(runs[:, 1] - runs[:, 0]).argmax()]
    return int(begin), int(end)


def _runs(flags: NDArray[np.bool_]) -> NDArray[np.int64]:
    """First and end of each run of true flags, [runs, 2]."""
    return np.flatnonzero(np.diff(np.concatenate([[False], flags, [False]]).astype(np.int8))).reshape(-1, 2)


def halves(window: Window) -> tuple[Window, Window]:
    """A window in two at the best pause of its middle half."""
    quarter = len(window.wave) // 4
    middle = window.wave[quarter : 3 * quarter]
    begin, end = _longest(_quiet(middle))
    at = (quarter + (begin + end) // 2 * FRAME) / RATE
    return window.part(0.0, at), window.part(at, window.seconds)


FEW = 0.6  # seconds of speech that nobody wrote down, from which it is asked for again
RUNS_ON = 1.2  # the same where it goes on from what was written down: its times are not exact
CLOSE = 0.6  # seconds between two words that no other fits between
BEFORE = 0.3  # seconds of sound before and after it that go along


def missed(window: Window, covered: Sequence[Span]) -> Span | None:
    """The first stretch of a window with speech that no segment covers, in seconds of the window; None if
    there is none.
    """
    edges = [(0.0, 0.0), *_merged(covered), (window.seconds, window.seconds)]
    for (_, begin), (end, _) in pairwise(edges):
        inside = [
            (max(a, begin), min(b, end), a < begin or b > end)
            for a, b in window.speech
            if a < end and b > begin
        ]
        within = sum(b - a for a, b, _ in inside)
        whole = sum(b - a for a, b, crosses in inside if not crosses)
        if whole >= FEW or within >= RUNS_ON:
            return max(begin, inside[0][0] - BEFORE), min(end, inside[-1][1] + BEFORE)
    return None


EDGE = 0.02  # seconds that a segment is longer than its sound at either side
TOUCHES = 15  # frames of a neighbour's sound that a segment's times may overlap
APART = 25  # frames of silence between the two


def sounding(window: Window) -> NDArray[np.bool_]:
    """Which 20 ms are not silence: a voice, or anything that is not quiet beside it."""
    sounds = ~_quiet(window.wave) if len(window.wave) >= FRAME else np.zeros(0, np.bool_)
    for begin, end in window.speech:
        sounds[int(begin * RATE) // FRAME : -(-int(end * RATE) // FRAME)] = True
    return sounds


def snapped(span: Span, sounds: NDArray[np.bool_]) -> Span:
    """A segment's times, without the silence at its ends: Whisper gives pauses to the segment beside them.
    The tail of a neighbour's sound that they touch, with a pause behind it, is left to the neighbour.
    """
    first, last = int(span[0] * RATE) // FRAME, -(-int(span[1] * RATE) // FRAME)
    runs = _runs(sounds[first:last])
    if len(runs) > 1 and runs[0][0] == 0 and runs[1][0] - runs[0][1] >= APART:
        inside = int(runs[0][1])
        runs = runs[1:] if inside < min(TOUCHES, _reach(sounds[:first][::-1])) else runs
    if len(runs) > 1 and runs[-1][1] == last - first and runs[-1][0] - runs[-2][1] >= APART:
        inside = int(runs[-1][1] - runs[-1][0])
        runs = runs[:-1] if inside < min(TOUCHES, _reach(sounds[last:])) else runs
    if not len(runs):
        return span
    begin, end = ((first + int(at)) * FRAME / RATE for at in (runs[0][0], runs[-1][1]))
    return max(span[0], begin - EDGE), min(span[1], end + EDGE)


def _reach(sounds: NDArray[np.bool_]) -> int:
    """How many frames sound without a break from the first on."""
    return len(sounds) if sounds.all() else int(sounds.argmin())


def _merged(found: Sequence[Span]) -> list[Span]:
    merged: list[Span] = []
    for begin, end in sorted(found):
        if merged and begin <= merged[-1][1] + CLOSE:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((begin, end))
    return merged
