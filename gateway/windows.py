"""Long recordings cut into windows of at most 30 s. `cut` is the only thing callers know; another way to cut only has to keep its shape."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

RATE = 16_000
LONGEST = 30 * RATE
SEARCH = 10 * RATE
FRAME = RATE // 50


@dataclass(frozen=True)
class Window:
    """A stretch of a recording: float32 samples and where they begin, in seconds."""

    wave: NDArray[np.float32]
    start: float


def cut(wave: NDArray[np.float32]) -> list[Window]:
    """Cut at the middle of the longest quiet stretch in the last 10 s of each window; without one, at the quietest 20 ms."""
    windows, at = [], 0
    while len(wave) - at > LONGEST:
        end = at + LONGEST - SEARCH + _quietest(wave[at + LONGEST - SEARCH : at + LONGEST])
        windows.append(Window(wave[at:end], at / RATE))
        at = end
    return [*windows, Window(wave[at:], at / RATE)]


def _quietest(stretch: NDArray[np.float32]) -> int:
    """Sample offset of the best place to cut."""
    energy = np.square(stretch[: len(stretch) // FRAME * FRAME].reshape(-1, FRAME)).mean(1)
    quiet = energy <= max(float(np.quantile(energy, 0.9)) * 1e-2, float(energy.min()) * 1.5)
    edges = np.flatnonzero(np.diff(np.concatenate([[False], quiet, [False]]).astype(np.int8)))
    runs = edges.reshape(-1, 2)
    begin, end = runs[(runs[:, 1] - runs[:, 0]).argmax()]
    return int((begin + end) // 2 * FRAME + FRAME // 2)
