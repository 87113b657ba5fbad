"""Find quiet audio: frames of 20 ms, and runs of them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .vad import RATE

Floats = NDArray[np.float32]
FRAME = RATE // 50


def energy(wave: Floats, frame: int = FRAME) -> Floats:
    """Return the mean square of every 20 ms of audio, or of so many samples, float32 [frames]."""
    mean: Floats = np.square(wave[: len(wave) // frame * frame].reshape(-1, frame)).mean(1)
    return mean


def quiet(wave: Floats) -> NDArray[np.bool_]:
    """Tell which 20 ms frames lie 20 dB below loud speech, or near the quietest, bool [frames]."""
    loud = energy(wave)
    below: NDArray[np.bool_] = loud <= max(float(np.quantile(loud, 0.9)) * 1e-2, float(loud.min()) * 1.5)
    return below


def quietest(wave: Floats) -> int:
    """Return the middle of the quietest 50 ms as a sample of the wave; its end if it is shorter than that."""
    loud = energy(wave, FRAME // 2)
    if len(loud) < 5:
        return len(wave)
    return int(np.convolve(loud, np.ones(5), "valid").argmin()) * FRAME // 2 + 5 * FRAME // 4


def longest(flags: NDArray[np.bool_]) -> tuple[int, int]:
    """Return the longest run of true flags [n] as first and end; (0, 0) if there is none."""
    found = runs(flags)
    if not len(found):
        return 0, 0
    begin, end = found[(found[:, 1] - found[:, 0]).argmax()]
    return int(begin), int(end)


def runs(flags: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return first and end of each run of true flags, [runs, 2]."""
    return np.flatnonzero(np.diff(np.concatenate([[False], flags, [False]]).astype(np.int8))).reshape(-1, 2)
