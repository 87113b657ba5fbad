"""Compute when each token was spoken from cross-attention.

Method and constants: openai/whisper timing.py (`find_alignment`): per head, weights are normalized over the
tokens and smoothed over time with a median of 7 frames; dynamic time warping finds the path through the mean
over heads. A frame of the encoder is 20 ms.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
FRAMES_PER_SECOND = 50
MEDIAN = 7
BEYOND = 10  # frames
# All float16 as float32: a table is six times as fast as numpy's own conversion.
FLOATS = np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(np.float32)
# The exchanges after which place 3 of seven has their median (N. Devillard, Fast median search, 1998).
EXCHANGES = (
    *((0, 5), (0, 3), (1, 6), (2, 4), (0, 1), (3, 5), (2, 6)),
    *((2, 3), (3, 6), (4, 5), (1, 4), (1, 3), (3, 4)),
)
LINES = 8  # rows of a head at once: what is computed in between stays in the processor's cache


def smooth(weights: Floats) -> Floats:
    """Apply a median over 7 neighbours along the last axis of [..., frames], reflected at the ends; shorter
    inputs are unchanged.
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
    """Find the cheapest path through [n, m] from corner to corner with steps right, down and diagonal, and
    return its rows and columns in order. Among equal steps diagonal is preferred, then down.

    One row is computed at once: a path that enters a row at k and is now at j costs `entered[k] + summed[j] -
    summed[k - 1]`, so the best way to each j is a running minimum over k.
    """
    n, m = cost.shape
    down, enters = np.empty((n, m), np.bool_), np.empty((n, m), np.bool_)
    total = np.cumsum(cost[0], dtype=np.float64)
    enters[0], enters[0, 0] = False, True
    diagonal = np.full(m, np.inf)
    for row in range(1, n):
        diagonal[1:] = total[:-1]
        np.less(total, diagonal, out=down[row])
        entered, summed = np.minimum(total, diagonal), np.cumsum(cost[row], dtype=np.float64)
        entered[1:] -= summed[:-1]
        least = np.minimum.accumulate(entered)
        np.less_equal(entered, least, out=enters[row])
        total = summed + least
    columns, last = [], m - 1
    for row in range(n - 1, -1, -1):
        # Where the path has come into the row; anywhere, where costs are not numbers.
        first = int(next(iter(np.flatnonzero(enters[row, : last + 1])[::-1]), 0)) if row else 0
        columns.append(np.arange(first, last + 1))
        last = first if not first or down[row, first] else first - 1
    columns.reverse()
    return np.repeat(np.arange(n), [len(part) for part in columns]), np.concatenate(columns)


def reached(attention: NDArray[np.float16]) -> int:
    """Return how many frames the decoder had attended to when it was stopped: up to where its heads attend
    last, and a little more. A path that had to continue to the end of the audio would stretch its tokens.

    Args:
        attention: [heads, ids, encoder positions] of a text that was cut off.
    """
    return int(attention[:, -1].astype(np.float32).mean(0).argmax()) + 1 + BEYOND


def token_starts(attention: NDArray[np.float16], frames: int) -> Floats:
    """Compute the seconds at which each token of a text starts.

    Args:
        attention: [heads, ids, encoder positions], a softmax over the encoder positions: the cross-attention
            before each next id.
        frames: how many encoder positions contain audio.

    Returns:
        float32 [tokens + 1]; the last is where the text ends.
    """
    weights = np.take(FLOATS, attention[:, :, : max(frames, 1)].view(np.uint16))
    # As if the softmax had seen the sounding frames only.
    weights /= np.maximum(weights.sum(-1, keepdims=True), 1e-9)
    weights -= weights.mean(-2, keepdims=True)
    deviation = np.sqrt(np.einsum("hif,hif->hf", weights, weights) / weights.shape[1])
    weights /= np.maximum(deviation, 1e-9)[:, None]
    rows, columns = warp(-smooth(weights).mean(0))
    first = np.flatnonzero(np.diff(rows, prepend=-1))
    return (columns[first] / FRAMES_PER_SECOND).astype(np.float32)
