"""Where a window sounds, and times that begin and end with the sound."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .quiet import FRAME, longest, quiet, runs
from .vad import RATE, Span
from .windows import Window

Flags = NDArray[np.bool_]
ONSET = 5  # frames beside a voice, such as a quiet consonant, that belong to it unless they are quiet
HOLE = 10  # frames of quiet that are silence even where voice activity goes on
EDGE = 0.02  # seconds that a segment is longer than its sound at either side
TOUCHES = 15  # frames of a neighbour's sound that a segment's times may overlap
APART = 25  # frames of silence between the two
REST = 4  # frames; a shorter silence may be the closure of a t or a k


def sounding(window: Window) -> Flags:
    """Which 20 ms are not silence, [frames]: a voice with what is not quiet right beside it, or, where voice
    activity hears none, all that is not quiet. Noise in the pauses of a voice is no sound.
    """
    if len(window.wave) < FRAME:
        return np.zeros(0, np.bool_)
    still = quiet(window.wave)
    voice, silence = np.zeros(len(still), np.bool_), np.zeros(len(still), np.bool_)
    for span in window.speech:
        first, last = frames(span)
        earlier, later = ~still[max(0, first - ONSET) : first], ~still[last : last + ONSET]
        voice[first - _reach(earlier[::-1]) : last + _reach(later)] = True
    for begin, end in runs(still):
        silence[begin:end] = end - begin >= HOLE
    return next((sounds for sounds in (voice & ~silence, voice) if sounds.any()), ~still)


def frames(span: Span) -> tuple[int, int]:
    """The first of the frames that a time touches, and the one behind the last."""
    return int(span[0] * RATE) // FRAME, -(-int(span[1] * RATE) // FRAME)


def rest(span: Span, sounds: Flags) -> Span | None:
    """The longest silence of a stretch, in seconds of the window; None if there is none. `sounds`: what
    `sounding` gives.
    """
    first, last = frames(span)
    begin, end = longest(~sounds[first:last])
    return ((first + begin) * FRAME / RATE, (first + end) * FRAME / RATE) if end - begin >= REST else None


def snapped(span: Span, sounds: Flags) -> Span:
    """A segment's or a word's times, without the silence at its ends: Whisper gives pauses to what is beside
    them. The tail of a neighbour's sound that they touch, with a pause behind it, is left to the neighbour.
    """
    first, last = frames(span)
    found = runs(sounds[first:last])
    if len(found) > 1 and found[0][0] == 0 and found[1][0] - found[0][1] >= APART:
        inside = int(found[0][1])
        found = found[1:] if inside < min(TOUCHES, _reach(sounds[:first][::-1])) else found
    if len(found) > 1 and found[-1][1] == last - first and found[-1][0] - found[-2][1] >= APART:
        inside = int(found[-1][1] - found[-1][0])
        found = found[:-1] if inside < min(TOUCHES, _reach(sounds[last:])) else found
    if not len(found):
        return span
    begin, end = ((first + int(at)) * FRAME / RATE for at in (found[0][0], found[-1][1]))
    return max(span[0], begin - EDGE), min(span[1], end + EDGE)


def _reach(sounds: Flags) -> int:
    """How many frames sound without a break from the first on."""
    return len(sounds) if sounds.all() else int(sounds.argmin())
