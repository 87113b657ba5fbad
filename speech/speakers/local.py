"""Stretches of speech of local speakers, and a voice vector of each."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from ..quiet import runs
from .model import Floats, VoiceModel
from .tuning import FIRST, FRAME, FRAMES, HOP, RATE, TUNING, WINDOW

# Of each class: which of the three local speakers it has.
SPEAKERS_OF = np.array(
    [[0, 0, 0], [1, 0, 0], [0, 1, 0], [0, 0, 1], [1, 1, 0], [1, 0, 1], [0, 1, 1]], np.float32
)
OF_HOP = HOP // FRAME
HOME = (FRAMES - OF_HOP) // 2  # the frames of a window from here, as many as of a hop, are its own
Frames = NDArray[np.bool_]
PEAK = 6  # frames before and after a pause in which it is the likeliest


@dataclass(frozen=True)
class Chunk:
    """Samples [WINDOW] of a recording, padded with zeros at its end; `number` counts from 0."""

    number: int
    sound: Floats
    is_last: bool = False

    @property
    def own(self) -> range:
        """Return its frames that no other window covers."""
        return range(HOME if self.number else 0, FRAMES if self.is_last else HOME + OF_HOP)


@dataclass(frozen=True)
class SpeakerStretch:
    """Speech of one speaker without a pause.

    Attributes:
        start: its first frame in the recording
        activity: float16 [frames], the probability that they speak
        clear: seconds in which nobody else speaks
        vector: float32 [dimensions] of their voice, length 1
    """

    start: int
    activity: NDArray[np.float16]
    clear: float
    vector: Floats


@dataclass
class VoiceBatch:
    """Audio whose vectors are wanted, and which stretch wants each."""

    sounds: list[Floats] = field(default_factory=list)
    speech: list[tuple[tuple[int, NDArray[np.float16], float], int]] = field(default_factory=list)

    def add(self, sound: Floats) -> int:
        """Add audio and return its index."""
        self.sounds.append(even_length(sound))
        return len(self.sounds) - 1


def windows(blocks: Iterable[Floats]) -> Iterator[Chunk]:
    """Yield the windows of a recording that arrives in blocks, one each HOP."""
    held, number = np.empty(0, np.float32), 0
    for block in blocks:
        held = np.concatenate([held, block])
        while len(held) > WINDOW:
            yield Chunk(number, held[:WINDOW])
            held, number = held[HOP:], number + 1
    if len(held):
        yield Chunk(number, np.concatenate([held, np.zeros(WINDOW - len(held), np.float32)]), is_last=True)


async def speech_in(model: VoiceModel, batch: list[Chunk]) -> list[SpeakerStretch]:
    """Return the speech in the windows' own frames.

    Raises:
        ApiError: the model did not answer.
    """
    scores = np.exp(await model.segment(np.stack([window.sound for window in batch])))
    chosen = SPEAKERS_OF[scores.argmax(-1)] > 0  # [windows, frames, 3]
    activities = (scores @ SPEAKERS_OF).astype(np.float16)
    voices = VoiceBatch()
    for window, score, speaks, activity in zip(batch, scores, chosen, activities, strict=True):
        clear, cuts = speaks & (speaks.sum(1, keepdims=True) == 1), pauses(score[:, 0])
        for speaker in range(3):
            _collect(voices, window, cuts, speaks[:, speaker], clear[:, speaker], activity[:, speaker])
    vectors = await embedded(model, voices.sounds)
    return [SpeakerStretch(*facts, vectors[place]) for facts, place in voices.speech]


def pauses(nobody: Floats) -> list[int]:
    """Return frames at which silence is likelier than nearby, and likely enough [frames]: another speaker,
    whom the network takes for the same one, may start there.
    """
    near = sliding_window_view(np.pad(nobody, PEAK, mode="edge"), 2 * PEAK + 1).max(1)
    peaks = np.flatnonzero((nobody == near) & (nobody > TUNING.pause))
    return [
        int(group[len(group) // 2])
        for group in np.split(peaks, np.flatnonzero(np.diff(peaks) > 1) + 1)
        if len(group)
    ]


def _collect(
    voices: VoiceBatch,
    window: Chunk,
    cuts: list[int],
    speaks: Frames,
    clear: Frames,
    activity: NDArray[np.float16],
) -> None:
    """Return one local speaker's stretches. A short one gets the vector of all their speech in the window."""
    whole: int | None = None
    apart = speaks.copy()
    apart[cuts] = False
    for begin, end in stretches(apart, window.own):
        near = _around(apart, begin, end)
        seconds = float(clear[near].sum()) * FRAME / RATE
        if seconds >= TUNING.alone:
            mask = np.zeros_like(clear)
            mask[near] = clear[near]
            place = voices.add(cut(window.sound, mask))
        else:
            if whole is None:
                enough = clear.sum() * FRAME >= TUNING.audible * RATE
                whole = voices.add(cut(window.sound, clear if enough else speaks))
            place, seconds = whole, 0.0
        voices.speech.append(((window.number * OF_HOP + begin, activity[begin:end], seconds), place))


def stretches(speaks: Frames, own: range) -> Iterator[tuple[int, int]]:
    """Return where somebody speaks in a window's own frames, in parts of a few seconds."""
    inside = speaks.copy()
    inside[: own.start] = inside[own.stop :] = False
    for begin, end in runs(inside).tolist():
        if own.start < begin and end < own.stop and (end - begin) * FRAME < TUNING.shortest * RATE:
            continue
        parts = max(1, round((end - begin) * FRAME / RATE / TUNING.part))
        cuts = np.linspace(begin, end, parts + 1).round().astype(int)
        yield from zip(cuts[:-1].tolist(), cuts[1:].tolist(), strict=True)


def _around(speaks: Frames, begin: int, end: int) -> slice:
    """Extend a stretch by as much adjacent speech as makes a good vector."""
    most = round(TUNING.part * RATE / FRAME)
    while end - begin < most and begin > 0 and speaks[begin - 1]:
        begin -= 1
    while end - begin < most and end < len(speaks) and speaks[end]:
        end += 1
    return slice(begin, end)


def cut(sound: Floats, frames: Frames) -> Floats:
    """Return the samples under frames that are true."""
    return np.concatenate([sound[begin:end] for begin, end in runs(frames) * FRAME + FIRST])


def even_length(voice: Floats) -> Floats:
    """Cut audio to its middle, or repeat it, so that there are few lengths: those of one length are computed
    together.
    """
    wanted = next((n for n in TUNING.lengths if len(voice) <= n * RATE), TUNING.lengths[-1])
    count = round(wanted * RATE)
    start = max(0, (len(voice) - count) // 2)
    return np.resize(voice[start : start + count], count)


async def embedded(model: VoiceModel, voices: list[Floats]) -> Floats:
    """Return vectors of length 1 for voices of few lengths, [voices, dimensions]."""
    groups: defaultdict[int, list[int]] = defaultdict(list)
    for number, voice in enumerate(voices):
        groups[len(voice)].append(number)
    found: dict[int, Floats] = {}
    for numbers in groups.values():
        vectors = await model.embed(np.stack([voices[number] for number in numbers]))
        vectors = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
        found.update(zip(numbers, vectors, strict=True))
    return np.array([found[number] for number in range(len(voices))], np.float32)
