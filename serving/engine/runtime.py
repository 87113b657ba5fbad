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

from .sampling import Looked, Sampling

Floats = NDArray[np.float32]


class Memory(Protocol):
    """What an encoder leaves for the decoder; it stays where the runtime computes."""

    @property
    def length(self) -> int:
        """Positions that the decoder attends to."""

    def ready(self, *, wait: bool = False) -> bool:
        """Whether it has been computed, or could not be; with `wait`, not before."""

    @property
    def failed(self) -> Exception | None:
        """Once it is ready: why it could not be computed."""


@dataclass(eq=False, slots=True)  # one is made for each row of each step
class Row:
    """One row of the next step: the row of the last step that it continues (None: new), its new ids, the
    position of the first, its encoder memory, and what is added to its logits (float32 [vocabulary] or None).
    `table`: float16 or float32 [n, prompt_width], the embeddings of ids from the vocabulary's end on; a new
    row's.

    `before`: ids of its prompt that were read already, of a row that reads more of it; `coming`: how many
    follow in later steps.

    `choice`: what the runtime chooses the next id by (see `Runtime.chooses`); None: the caller looks at the
    logits itself. `attend`: of this row `Step.attention` may be asked.
    """

    parent: int | None
    ids: tuple[int, ...]
    position: int
    memory: Any
    bias: Floats | None = None
    choice: Sampling | None = None
    table: NDArray[Any] | None = None
    attend: bool = False
    before: tuple[int, ...] = ()
    coming: int = 0

    @property
    def reads(self) -> bool:
        """Whether its ids are of a prompt."""
        return self.parent is None or bool(self.before)


@dataclass(frozen=True)
class Step:
    """What a step gives, one entry per row: the id by its `choice`, else the likeliest (int64 [rows]), and
    its log probability (float32 [rows]). `logits(row)`: all of a row, float32 [vocabulary], until the next
    step, unless all rows have a choice; only who asks pays. `attention(row, count)`, until the next
    step, of a row that is to `attend`: what gives, to any thread and later as well, where the decoder looked
    from the last `count` of the row's ids, as `Runtime.align` does for a text: float16 [heads, count,
    memory]. None unless `facts.attends`.
    """

    best: NDArray[np.int64]
    best_log_prob: Floats
    logits: Callable[[int], Floats]
    attention: Callable[[int, int], Looked] | None = None


class RunningBatch(Protocol):
    """Rows that a decoder advances together."""

    def step(self, rows: Sequence[Row]) -> Step:
        """Advance to exactly these rows: a row of the last step that no row continues is gone."""


class Runtime(Protocol):
    """One engine."""

    @property
    def facts(self) -> EngineFacts:
        """Its engine.json."""

    def chooses(self, sampling: Sampling) -> bool:
        """Whether rows may bring this as their choice; they must then go on with the id that is chosen."""

    def prepare(self, source: NDArray[Any]) -> Any:
        """What `encode` takes, of features, float16 or float32 [frames, mels], of samples, float32
        [160 * frames] (only where `facts.takes_samples`), or ids, int64 [n]. Called by the thread that brings
        them, while the batch runs. Its memory is free again once nobody holds it.
        """

    def encode(self, sources: Sequence[Any]) -> Sequence[Memory]:
        """Run the encoder on several sources at once. It need not be done when this returns."""

    def align(self, ids: Sequence[int], memory: Any) -> NDArray[np.float16]:
        """Where each id of a text looked: float16 [heads, ids, memory], a softmax over the last axis. Only
        asked for where `facts.aligns`.
        """

    def batch(self) -> RunningBatch:
        """An empty one."""

    def close(self) -> None:
        """End what it has started; nothing is asked of it any more."""
