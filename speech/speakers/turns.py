"""Turns of a recording's speakers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..quiet import runs
from .clustering import Labels
from .local import SpeakerStretch
from .model import Floats
from .tuning import FIRST, FRAME, RATE, TUNING


@dataclass(frozen=True)
class Turn:
    """Times in seconds from the start of the recording."""

    start: float
    end: float
    speaker: int


@dataclass(frozen=True)
class Diarization:
    """The result of diarization.

    Attributes:
        activity: float32 [frames, speakers], the probability that each speaks
        voices: the speakers' vectors [speakers, dimensions]
    """

    activity: Floats
    voices: Floats
    turns: tuple[Turn, ...]

    def speaker_of(self, start: float, end: float) -> int:
        """Return the speaker who speaks most between two times; where nobody speaks, the nearest turn's
        speaker; without turns, the first one.
        """
        first, last = frame_at(start), max(frame_at(end), frame_at(start) + 1)
        spoken = self.activity[first:last].sum(0)
        if spoken.size and spoken.max() > 0.1 * (last - first):
            return int(spoken.argmax())
        middle = (start + end) / 2
        near = min(self.turns, key=lambda turn: max(turn.start - middle, middle - turn.end), default=None)
        return near.speaker if near else 0

    def overlaps(self, start: float, end: float) -> bool:
        """Tell whether two people speak for most of the time between."""
        first, last = frame_at(start), max(frame_at(end), frame_at(start) + 1)
        both = (self.activity[first:last] > TUNING.speaks).sum(1) > 1
        return bool(both.size) and bool(both.mean() > 0.5)


NOBODY = Diarization(np.empty((0, 0), np.float32), np.empty((0, 0), np.float32), ())


def frame_at(seconds: float) -> int:
    """Return the frame that contains a time."""
    return max(0, int((seconds * RATE - FIRST) // FRAME))


def diarization(found: Sequence[SpeakerStretch], labels: Labels, voices: Floats) -> Diarization:
    """Join stretches of speech into turns; speakers are numbered in order of first appearance."""
    activity = np.zeros((max(one.start + len(one.activity) for one in found), len(voices)), np.float32)
    for one, speaker in zip(found, labels, strict=True):
        its = activity[one.start : one.start + len(one.activity), speaker]
        np.maximum(its, one.activity, out=its)
    turns = [turn for speaker in range(len(voices)) for turn in _turns(activity[:, speaker], speaker)]
    order = list(dict.fromkeys(turn.speaker for turn in sorted(turns, key=lambda turn: turn.start)))
    number = {speaker: new for new, speaker in enumerate(order)}
    ordered = sorted(
        (Turn(turn.start, turn.end, number[turn.speaker]) for turn in turns), key=lambda turn: turn.start
    )
    return Diarization(activity[:, order], voices[order], tuple(ordered))


def _turns(activity: Floats, speaker: int) -> list[Turn]:
    spans: list[list[int]] = []
    for begin, end in runs(activity > TUNING.speaks).tolist():
        if spans and (begin - spans[-1][1]) * FRAME < TUNING.gap * RATE:
            spans[-1][1] = end
        else:
            spans.append([begin, end])
    return [
        Turn((begin * FRAME + FIRST) / RATE, (end * FRAME + FIRST) / RATE, speaker)
        for begin, end in spans
        if (end - begin) * FRAME >= TUNING.blip * RATE
    ]
