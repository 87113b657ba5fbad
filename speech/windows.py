"""Windows of a recording, at most 30 s each: their times, and speech that a text left out."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from .quiet import FRAME, Floats, longest, quiet
from .tuning import TUNING
from .vad import RATE, Span

SECONDS = 30
LONGEST = SECONDS * RATE
ENDED = re.compile(r"[.!?…。！？｡؟।][\"'”’»)\]』」]*\s*$")  # a text that ends with a sentence


@dataclass(frozen=True)
class Window:
    """A part of a recording: float32 samples, and where they start in seconds.

    Attributes:
        speech: where there is speech, in seconds of the window
        gaps: (seconds of the window, seconds of the recording left out there)
        goes_on: it was cut because of its length, not at the end of speech
    """

    wave: Floats
    start: float
    speech: tuple[Span, ...] = ()
    gaps: tuple[Span, ...] = ()
    goes_on: bool = False

    @property
    def seconds(self) -> float:
        """Return its length in seconds."""
        return len(self.wave) / RATE

    def time(self, at: float, *, end: bool = False) -> float:
        """Convert seconds of the window to seconds of the recording. What ends at a gap ends before it."""
        before = [left_out for place, left_out in self.gaps if (place < at if end else place <= at)]
        return self.start + at + sum(before)

    def place(self, time: float) -> float:
        """Convert seconds of the recording to seconds of the window."""
        at = time - self.start
        for place, left_out in self.gaps:
            if at > place:
                at = max(place, at - left_out)
        return min(max(at, 0.0), self.seconds)

    def part(self, begin: float, end: float) -> Window:
        """Return the part between two times of the window."""
        a, b = (round(min(max(at, 0.0), self.seconds) * RATE) for at in (begin, end))
        first, last = a / RATE, b / RATE
        speech = tuple(
            (max(x, first) - first, min(y, last) - first)
            for x, y in self.speech
            if min(y, last) - max(x, first) >= TUNING.sliver
        )
        gaps = tuple((place - first, left_out) for place, left_out in self.gaps if first < place < last)
        return Window(
            self.wave[a:b], self.time(first), speech, gaps, goes_on=self.goes_on or b < len(self.wave)
        )

    def followed(self, other: Window) -> Window:
        """Join both; what lies between them in the recording is left out."""
        at, left_out = self.seconds, other.start - self.time(self.seconds)
        return Window(
            np.concatenate([self.wave, other.wave]),
            self.start,
            (*self.speech, *((at + begin, at + end) for begin, end in other.speech)),
            (
                *self.gaps,
                *([(at, left_out)] if left_out > 0.5 / RATE else []),
                *((at + place, more) for place, more in other.gaps),
            ),
            goes_on=other.goes_on,
        )


def halves(window: Window) -> tuple[Window, Window]:
    """Split a window in two at the best pause of its middle half."""
    quarter = len(window.wave) // 4
    middle = window.wave[quarter : 3 * quarter]
    begin, end = longest(quiet(middle))
    at = (quarter + (begin + end) // 2 * FRAME) / RATE
    return window.part(0.0, at), window.part(at, window.seconds)


def may_lack(window: Window) -> bool:
    """Tell whether there is enough speech for some to be `missed`."""
    return sum(end - begin for begin, end in window.speech) >= TUNING.lost_speech


def missed(window: Window, covered: Sequence[Span]) -> Span | None:
    """Return the first span of speech in a window that no segment covers, in seconds of the window; None if
    there is none.
    """
    edges = [(0.0, 0.0), *_merged(covered), (window.seconds, window.seconds)]
    for (_, begin), (end, _) in pairwise(edges):
        inside = [(max(a, begin), min(b, end)) for a, b in window.speech if a < end and b > begin]
        if sum(b - a for a, b in inside) >= TUNING.lost_speech:
            return inside[0][0], inside[-1][1]
    return None


def _merged(found: Sequence[Span]) -> list[Span]:
    merged: list[Span] = []
    for begin, end in sorted(found):
        if merged and begin <= merged[-1][1] + TUNING.close_words:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((begin, end))
    return merged
