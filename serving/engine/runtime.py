"""The seam between the scheduler and what computes: one implementation for each portable engine.

The scheduler decides which rows step together and what is chosen; a runtime keeps weights, memories and
caches, wherever they are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from conch.bundle import EngineFacts

Floats = NDArray[np.float32]


class Memory(Protocol):
    """What an encoder leaves for the decoder; it stays where the runtime computes."""

    @property
    def length(self) -> int:
        """Positions that the decoder attends to."""


@dataclass(frozen=True)
class Row:
    """One row of the next step: the row of the last step that it continues (None: new), its new ids, the
    position of the first, its encoder memory, and what is added to its logits (float32 [vocabulary] or None).
    """

    parent: int | None
    ids: tuple[int, ...]
    position: int
    memory: Any
    bias: Floats | None = None


@dataclass(frozen=True)
class Step:
    """What a step gives, one entry per row: the likeliest id (int64 [rows]) and its log probability (float32
    [rows]). `logits(row)`: all of a row, float32 [vocabulary], until the next step; only who asks pays.
    """

    best: NDArray[np.int64]
    best_log_prob: Floats
    logits: Callable[[int], Floats]


class RunningBatch(Protocol):
    """Rows that a decoder advances together."""

    def step(self, rows: Sequence[Row]) -> Step:
        """Advance to exactly these rows: a row of the last step that no row continues is gone."""


class Runtime(Protocol):
    """One engine."""

    @property
    def facts(self) -> EngineFacts:
        """Its engine.json."""

    def encode(self, sources: Sequence[NDArray[Any]]) -> Sequence[Memory]:
        """Run the encoder on several sources at once: features, float32 [frames, mels], or ids, int64 [n]."""

    def align(self, ids: Sequence[int], memory: Any) -> NDArray[np.float16]:
        """Where each id of a text looked: float16 [heads, ids, memory], a softmax over the last axis. Only
        asked for where `facts.aligns`.
        """

    def batch(self) -> RunningBatch:
        """An empty one."""
