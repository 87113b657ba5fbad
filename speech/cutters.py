"""Cut recordings of any length into windows of at most 30 s while the audio arrives: memory holds one window,
never the recording.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from .quiet import FRAME, Floats, energy, longest, quiet
from .silero import CHUNK
from .tuning import TUNING
from .vad import RATE, SileroVad, TurnDetection, spans, spoken
from .windows import LONGEST, Window

CHUNKS = LONGEST // CHUNK  # in a window; 30 s are half a chunk more
# Where a cut is looked for; the longest pause of 15 s is hardly ever the breath at a comma.
LATE = CHUNKS // 2
# Chunks that are taken in together; windows do not depend on how a recording was delivered.
AT_ONCE = RATE // CHUNK


class Cutter(Protocol):
    """Cuts blocks of audio into windows."""

    def feed(self, block: Floats) -> Iterator[Window]:
        """Return the windows that are complete now; `block`, float32 [samples] at 16 kHz, follows the
        previous one.
        """
        ...

    def finish(self) -> Iterator[Window]:
        """Return what is left at the end."""
        ...


@dataclass
class Pending:
    """Audio that is in no window yet: chunks, the speech probability of each, and their places in the
    recording. Chunks are joined only when they are read. `begins` is the probability above which somebody
    speaks.
    """

    parts: list[Floats] = field(default_factory=lambda: [np.zeros((0, CHUNK), np.float32)])
    probabilities: Floats = field(default_factory=lambda: np.zeros(0, np.float32))
    places: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    begins: float = TUNING.speech_begins

    def __len__(self) -> int:
        return len(self.places)

    @property
    def chunks(self) -> Floats:
        """Return all of them, float32 [n, 512]."""
        if len(self.parts) > 1:
            self.parts = [np.concatenate(self.parts)]
        return self.parts[0]

    def add(self, chunks: Floats, probabilities: Floats, place: int) -> None:
        """Append chunks [n, samples] and their probabilities [n]; the first is number `place` of the
        recording.
        """
        self.parts.append(chunks)
        self.probabilities = np.concatenate([self.probabilities, probabilities])
        self.places = np.concatenate([self.places, np.arange(place, place + len(chunks))])

    def keep(self, which: NDArray[np.bool_]) -> None:
        """Drop all chunks but those in `which` [chunks]."""
        self.parts = [self.chunks[which]]
        self.probabilities, self.places = self.probabilities[which], self.places[which]

    def shorten(self) -> None:
        """Remove the middle of a long silence at the end."""
        sounding = np.flatnonzero(self.probabilities >= TUNING.silent_probability)
        silence = len(self) - (int(sounding[-1]) + 1 if len(sounding) else 0)
        if silence > 2 * TUNING.kept_chunks:
            which = np.ones(len(self), np.bool_)
            which[len(self) - silence + TUNING.kept_chunks : len(self) - TUNING.kept_chunks] = False
            self.keep(which)

    def take(self, count: int, samples: int | None = None, *, goes_on: bool = False) -> Window:
        """Return the first chunks as a window, of which `samples` are audio."""
        places, probabilities = self.places[:count], self.probabilities[:count]
        jumps = np.flatnonzero(np.diff(places) > 1)
        gaps = tuple(
            ((int(i) + 1) * CHUNK / RATE, float(places[i + 1] - places[i] - 1) * CHUNK / RATE) for i in jumps
        )
        window = Window(
            self.chunks[:count].reshape(-1)[:samples].copy(),  # without what is still to come
            float(places[0]) * CHUNK / RATE,
            tuple(spans(probabilities, self.begins)),
            gaps,
            goes_on,
        )
        self.parts = [self.chunks[count:]]
        self.probabilities, self.places = self.probabilities[count:], self.places[count:]
        return window

    def cut(self) -> int:
        """Return after how many chunks to end a window: in the middle of the longest pause in its last 15 s,
        otherwise as `pause` decides.
        """
        count = min(len(self), CHUNKS)
        begin, end = longest(self.probabilities[LATE:count] < TUNING.speech_goes_on)
        if end - begin >= TUNING.pause_chunks:
            return LATE + (begin + end) // 2
        return max(1, pause(self.chunks[:count].reshape(-1)) // CHUNK)


class PauseCutter:
    """Cuts at pauses. Silence of more than a second is shortened to one, and windows without speech are left
    out.
    """

    def __init__(self) -> None:
        self.voice, self.pending = SileroVad(), Pending()
        self.waiting: Floats = np.zeros(0, np.float32)
        self.judged = 0  # chunks
        self.samples = 0

    def feed(self, block: Floats) -> Iterator[Window]:
        self.samples += len(block)
        self.waiting = np.concatenate([self.waiting, block])
        yield from self._listen(len(self.waiting) // CHUNK // AT_ONCE * AT_ONCE)

    def _listen(self, count: int) -> Iterator[Window]:
        """Run voice activity detection on the next `count` chunks: all at once, which is faster, then taken
        in a second at a time.
        """
        chunks, self.waiting = self.waiting[: count * CHUNK].reshape(-1, CHUNK), self.waiting[count * CHUNK :]
        probabilities = self.voice.probabilities(chunks)
        for at in range(0, count, AT_ONCE):
            self.pending.add(chunks[at : at + AT_ONCE], probabilities[at : at + AT_ONCE], self.judged)
            self.judged += len(chunks[at : at + AT_ONCE])
            self.pending.shorten()
            while len(self.pending) > CHUNKS + 1:
                yield from self._spoken(self.pending.cut())

    def finish(self) -> Iterator[Window]:
        left = -(-len(self.waiting) // CHUNK)
        missing = left * CHUNK - len(self.waiting)
        if left:
            self.waiting = np.pad(self.waiting, (0, missing))
            yield from self._listen(left)
        while len(self.pending) * CHUNK - missing > LONGEST:
            yield from self._spoken(self.pending.cut())
        if len(self.pending):
            yield from self._spoken(len(self.pending), len(self.pending) * CHUNK - missing)

    def _spoken(self, count: int, samples: int | None = None) -> Iterator[Window]:
        voice = spoken(
            self.pending.probabilities[:count], short=self.samples <= TUNING.short_recording * RATE
        )
        window = self.pending.take(count, samples, goes_on=samples is None)
        if voice:
            yield window


class TurnCutter:
    """Cuts where a speaker's turn ends (server_vad); silence between turns is left out. A turn of over 30 s
    is cut at a pause. A turn without `speech`, such as a click, has no words.
    """

    def __init__(self, turns: TurnDetection) -> None:
        self.turns, self.voice = turns, SileroVad()
        self.pending = Pending(begins=min(TUNING.speech_begins, turns.threshold))
        self.padding = int(turns.padding * RATE) // CHUNK
        self.waiting: Floats = np.zeros(0, np.float32)
        self.judged = self.below = 0  # chunks: of all, and of the current turn under its threshold
        self.speaking = False

    @property
    def at(self) -> int:
        """Return the sample at which the current turn started."""
        return int(self.pending.places[0]) * CHUNK if len(self.pending) else self.judged * CHUNK

    @property
    def kept(self) -> Floats:
        """Return the current turn so far."""
        return np.concatenate([self.pending.chunks.reshape(-1), self.waiting])

    def feed(self, block: Floats) -> Iterator[Window]:
        self.waiting = np.concatenate([self.waiting, block])
        count = len(self.waiting) // CHUNK
        chunks, self.waiting = self.waiting[: count * CHUNK].reshape(-1, CHUNK), self.waiting[count * CHUNK :]
        for chunk, probability in zip(chunks, self.voice.probabilities(chunks).tolist(), strict=True):
            if probability >= self.turns.threshold and not self.speaking:
                self._forget()
                self.speaking = True
            self.pending.add(chunk[None], np.array([probability], np.float32), self.judged)
            self.judged += 1
            while self.speaking and len(self.pending) > CHUNKS:
                yield self.pending.take(self.pending.cut(), goes_on=True)
            if self._ends(probability):
                yield self.pending.take(len(self.pending))
                self.speaking = False
        if not self.speaking:
            self._forget()

    def _ends(self, probability: float) -> bool:
        """Tell whether the current turn ends with a chunk of this probability of speech."""
        if probability >= self.turns.threshold:
            self.below = 0
        elif self.speaking and probability < max(self.turns.threshold - 0.15, 0.01):
            self.below += 1
            return self.below * CHUNK >= self.turns.silence * RATE
        return False

    def finish(self) -> Iterator[Window]:
        if self.speaking:
            samples = len(self.pending) * CHUNK + len(self.waiting)
            last = np.pad(self.waiting, (0, CHUNK - len(self.waiting)))
            self.pending.add(last[None], np.zeros(1, np.float32), self.judged)
            yield self.pending.take(len(self.pending), samples)

    def _forget(self) -> None:
        """Drop what precedes the next turn, except for the padding."""
        which = np.zeros(len(self.pending), np.bool_)
        which[max(0, len(self.pending) - self.padding) :] = True
        self.pending.keep(which)


def pause(wave: Floats) -> int:
    """Return the best sample to cut at where voice activity shows no pause: the middle of the longest clear
    pause in the last 15 s, otherwise anywhere, otherwise the quietest 20 ms of the last 15 s.
    """
    late = LATE * CHUNK if len(wave) > LATE * CHUNK + RATE else RATE // 2
    still = quiet(wave)
    for first, frames in ((late // FRAME, still[late // FRAME :]), (RATE // FRAME, still[RATE // FRAME :])):
        begin, end = longest(frames)
        if end - begin >= TUNING.clear_frames:
            return (first + (begin + end) // 2) * FRAME
    return late + int(energy(wave[late:]).argmin()) * FRAME + FRAME // 2
