"""When each token was said, out of where the decoder looked.

Method and constants: openai/whisper timing.py (`find_alignment`): per head, weights are normalised over the
tokens and smoothed over time by a median of 7 frames; the mean over heads is walked through by dynamic time
warping. A frame of the encoder is 20 ms.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
FRAMES_PER_SECOND = 50
MEDIAN = 7


def smooth(weights: Floats) -> Floats:
    """Median over 7 neighbours along the last axis, reflected at the ends; short inputs stay as they are."""
    half = MEDIAN // 2
    if weights.shape[-1] <= half:
        return weights
    padded = np.pad(weights, [(0, 0)] * (weights.ndim - 1) + [(half, half)], mode="reflect")
    size = weights.shape[-1]
    # An odd-even transposition network over seven shifted views: numpy's own median sorts each window apart,
    # ten times as slow (measured).
    rows = [padded[..., i : i + size].copy() for i in range(MEDIAN)]
    for turn in range(MEDIAN):
        for i in range(turn % 2, MEDIAN - 1, 2):
            low = np.minimum(rows[i], rows[i + 1])
            np.maximum(rows[i], rows[i + 1], out=rows[i + 1])
            rows[i] = low
    return rows[half]


def warp(cost: Floats) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The cheapest path through [n, m] from corner to corner with steps right, down and diagonal: its rows
    and columns, in order.

    Cells of one anti-diagonal do not depend on each other, so numpy takes them at once.
    """
    n, m = cost.shape
    total = np.full((n + 1, m + 1), np.inf, np.float32)
    total[0, 0] = 0
    came = np.zeros(
        (n + 1, m + 1), np.int8
    )  # 0 diagonal, 1 from above, 2 from the left: the order of preference on a tie
    for diagonal in range(2, n + m + 1):
        i = np.arange(max(1, diagonal - m), min(n, diagonal - 1) + 1)
        j = diagonal - i
        before = np.stack([total[i - 1, j - 1], total[i - 1, j], total[i, j - 1]])
        best = before.argmin(0)
        total[i, j] = cost[i - 1, j - 1] + before[best, np.arange(len(i))]
        came[i, j] = best
    came[0, :], came[:, 0] = 2, 1
    rows, columns, row, column = [], [], n, m
    while row > 0 or column > 0:
        rows.append(row - 1)
        columns.append(column - 1)
        step = came[row, column]
        row, column = row - (step != 2), column - (step != 1)
    return np.array(rows[::-1]), np.array(columns[::-1])


def token_starts(attention: NDArray[np.float16], frames: int, head: int) -> Floats:
    """Seconds at which each token of a text begins.

    Args:
        attention: [heads, head + 1 + tokens + 1, memory], a softmax over the memory: start ids,
        <|notimestamps|>, the text, end of text.
        frames: how many of the memory's frames hold sound.
        head: how many ids stand before <|notimestamps|>, whose next token is the first of the text.

    Returns:
        float32 [tokens + 1]; the last is where the text ends.
    """
    weights = attention[:, :, : max(frames, 1)].astype(np.float32)
    weights /= np.maximum(
        weights.sum(-1, keepdims=True), 1e-9
    )  # as if the softmax had seen the sounding frames only
    weights = (weights - weights.mean(-2, keepdims=True)) / np.maximum(weights.std(-2, keepdims=True), 1e-9)
    rows, columns = warp(-smooth(weights).mean(0)[head:-1])
    first = np.flatnonzero(np.diff(rows, prepend=-1))
    return (columns[first] / FRAMES_PER_SECOND).astype(np.float32)
