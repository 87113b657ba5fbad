"""Find the frames of a window that are not silent, and fit times to them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .quiet import FRAME, quiet, quietest, runs
from .tuning import TUNING
from .vad import RATE, Span
from .windows import Window

Flags = NDArray[np.bool_]


def frames(span: Span) -> tuple[int, int]:
    """Return the first frame that a span touches, and the end frame."""
    return int(span[0] * RATE) // FRAME, -(-int(span[1] * RATE) // FRAME)


@dataclass(frozen=True)
class Sounds:
    """Which 20 ms frames of a window are not silent, bool [frames].

    Attributes:
        voice: speech, without noise in its pauses; where voice activity detection
            finds none, everything that is not quiet
        loud: everything that is not quiet
    """

    voice: Flags
    loud: Flags

    def begin(self, word: Span) -> float:
        """Return the start of a word that a silence follows, without the silence before it. Without speech in
        it: the word's end if it is loud, otherwise the end of the speech before it.
        """
        first, last = frames(word)
        if (voiced := np.flatnonzero(self.voice[first:last])).size:
            return max(word[0], (first + int(voiced[0])) * FRAME / RATE)
        earlier = np.flatnonzero(self.voice[:first])
        return word[1] if self._is_loud(word) or not earlier.size else (int(earlier[-1]) + 1) * FRAME / RATE

    def end(self, word: Span) -> float:
        """Return the end of a word that follows a silence: where its first sound ends, ignoring the tail of
        the word before it. Without speech in it: the word's start if it is loud, otherwise that of the speech
        after it.
        """
        first, last = frames(word)
        found = runs(self.voice[first:last])
        if len(found):
            tail = found[0][0] == 0 and self.voice[max(0, first - 1)] and found[0][1] < TUNING.overlap_frames
            end = found[1][1] if tail and len(found) > 1 else found[0][1]
            return min(word[1], (first + int(end)) * FRAME / RATE)
        later = np.flatnonzero(self.voice[last:])
        return word[0] if self._is_loud(word) or not later.size else (last + int(later[0])) * FRAME / RATE

    def _is_loud(self, word: Span) -> bool:
        own = self.loud[slice(*frames(word))]
        return bool(own.size) and bool(own.mean() >= 0.5)


def sounding(window: Window) -> Sounds:
    """Find the sounding frames of a window."""
    if len(window.wave) < FRAME:
        return Sounds(np.zeros(0, np.bool_), np.zeros(0, np.bool_))
    still = quiet(window.wave)
    voice, silence = np.zeros((2, len(still)), np.bool_)
    for span in window.speech:
        voice[slice(*frames(span))] = True
    for begin, end in runs(still):
        silence[begin:end] = end - begin >= TUNING.hole_frames
    voiced = next((flags for flags in (voice & ~silence, voice) if flags.any()), ~still)
    return Sounds(voiced, ~still)


def silence_in(span: Span, sounds: Flags, at: float, *, begins: bool = False) -> Span | None:
    """Return the longest silence of a span, in seconds of the window, or one at least half as long that ends
    (or `begins`) nearer to a time; None if there is none.
    """
    first, last = frames(span)
    found = runs(~sounds[first:last])
    sizes = found[:, 1] - found[:, 0]
    found = found[sizes >= max(TUNING.stop_frames, sizes.max(initial=0) / 2)]
    if not len(found):
        return None
    edges = first + found[:, 0 if begins else 1]
    begin, end = found[np.abs(edges * FRAME / RATE - at).argmin()]
    return (first + int(begin)) * FRAME / RATE, (first + int(end)) * FRAME / RATE


def between(window: Window, at: float) -> float:
    """Return where to cut after a text that ends at about this time, in seconds of the window: in the middle
    of a silence, otherwise where the audio is quietest, which may be inside a word.
    """
    around = (max(at - TUNING.around_end[0], 0.0), min(at + TUNING.around_end[1], window.seconds))
    if silence := silence_in(around, sounding(window).voice, at, begins=True):
        return sum(silence) / 2
    begin = round(max(at - TUNING.quietest_around[0], 0.0) * RATE)
    return (begin + quietest(window.wave[begin : round((at + TUNING.quietest_around[1]) * RATE)])) / RATE


def snapped(span: Span, sounds: Flags) -> Span:
    """Return a segment's or word's times without the silence at its ends, since Whisper adds pauses to their
    neighbours.
    """
    first, last = frames(span)
    found = runs(sounds[first:last])
    if not len(found):
        return span
    begin, end = ((first + int(at)) * FRAME / RATE for at in (found[0][0], found[-1][1]))
    return max(span[0], begin - TUNING.segment_edge), min(span[1], end + TUNING.segment_edge)
