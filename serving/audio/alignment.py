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
BEYOND = 10  # frames
# The exchanges after which place 3 of seven has their median (N. Devillard, Fast median search, 1998).
EXCHANGES = (
    *((0, 5), (0, 3), (1, 6), (2, 4), (0, 1), (3, 5), (2, 6)),
    *((2, 3), (3, 6), (4, 5), (1, 4), (1, 3), (3, 4)),
)
LINES = 8  # rows of a head at once: what is computed in between stays in the processor's cache


def smooth(weights: Floats) -> Floats:
    """Median over 7 neighbours along the last axis of [..., frames], reflected at the ends; short inputs stay
    as they are.
    """
    half, size = MEDIAN // 2, weights.shape[-1]
    if size <= half:
        return weights
    padded = np.pad(weights, [(0, 0)] * (weights.ndim - 1) + [(half, half)], mode="reflect")
    lines = padded.reshape(-1, padded.shape[-1])
    found = np.empty((len(lines), size), weights.dtype)
    for at in range(0, len(lines), LINES):
        views = [lines[at : at + LINES, i : i + size].copy() for i in range(MEDIAN)]
        spare = np.empty_like(views[0])
        for a, b in EXCHANGES:
            np.minimum(views[a], views[b], out=spare)
            np.maximum(views[a], views[b], out=views[b])
            views[a], spare = spare, views[a]
        found[at : at + LINES] = views[half]
    return found.reshape(weights.shape)


def warp(cost: Floats) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The cheapest path through [n, m] from corner to corner with steps right, down and diagonal: its rows
    and columns, in order. Of equal steps the diagonal is preferred, then down.

    Cells of one anti-diagonal do not depend on each other, so numpy takes them at once: cell (i, j) stands in
    line i + j, place i, of what is filled here.
    """
    n, m = cost.shape
    slanted = np.full((n + m - 1, n), np.inf, np.float32)
    i, j = np.indices((n, m))
    slanted[i + j, i] = cost
    down, right = np.empty(slanted.shape, np.bool_), np.empty(slanted.shape, np.bool_)
    # Totals of the last three anti-diagonals, one place further on, behind what lies outside.
    two, one, now = (np.full(n + 1, np.inf, np.float32) for _ in range(3))
    two[0] = 0
    for line, goes_down, goes_right in zip(slanted, down, right, strict=True):
        diagonal, above, left, best = two[:-1], one[:-1], one[1:], now[1:]
        np.less(above, diagonal, out=goes_down)
        np.minimum(above, diagonal, out=best)
        np.less(left, best, out=goes_right)
        np.minimum(left, best, out=best)
        best += line
        two, one, now = one, now, two
        now[0] = np.inf
    path, row, column = [(n - 1, m - 1)], n - 1, m - 1
    while row or column:
        at = row + column, row
        # At the borders there is one way only, also where costs are not numbers.
        step_right = not row or bool(column and right[at])
        step_down = not column or down[at]
        row, column = row - (not step_right), column - (step_right or not step_down)
        path.append((row, column))
    rows, columns = zip(*reversed(path), strict=True)
    return np.array(rows), np.array(columns)


def reached(attention: NDArray[np.float16]) -> int:
    """How many frames the decoder had heard of when it was stopped: up to where its heads look at last, and a
    little more. A path that had to go on to the end of the sound would take its tokens along.

    Args:
        attention: [heads, ids, memory], of a text that was cut off.
    """
    return int(attention[:, -1].astype(np.float32).mean(0).argmax()) + 1 + BEYOND


def token_starts(attention: NDArray[np.float16], frames: int, lines: slice = slice(None)) -> Floats:
    """Seconds at which each token of a text begins.

    Args:
        attention: [heads, ids, memory], a softmax over the memory: where the decoder looked before each next
        id.
        frames: how many of the memory's frames hold sound.
        lines: those from which each token of the text, and what follows it, was foretold.

    Returns:
        float32 [tokens + 1]; the last is where the text ends.
    """
    weights = attention[:, :, : max(frames, 1)].astype(np.float32)
    weights /= np.maximum(
        weights.sum(-1, keepdims=True), 1e-9
    )  # as if the softmax had seen the sounding frames only
    weights = (weights - weights.mean(-2, keepdims=True)) / np.maximum(weights.std(-2, keepdims=True), 1e-9)
    rows, columns = warp(-smooth(weights).mean(0)[lines])
    first = np.flatnonzero(np.diff(rows, prepend=-1))
    return (columns[first] / FRAMES_PER_SECOND).astype(np.float32)
