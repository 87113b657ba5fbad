"""The protocol between the scheduler and a runtime, implemented once for each portable engine.

The scheduler decides which rows step together and what is chosen; a runtime stores weights, encoder outputs
and caches, wherever they are.
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
    """An encoder output, stored where the runtime computes."""

    @property
    def length(self) -> int:
        """Return the positions that the decoder attends to."""

    def ready(self, *, wait: bool = False) -> bool:
        """Tell whether it has been computed or has failed; with `wait`, block until then."""

    @property
    def failed(self) -> Exception | None:
        """Return why it could not be computed, once it is ready."""


@dataclass(eq=False, slots=True)  # one is made for each row of each step
class Row:
    """One row of the next step.

    Attributes:
        parent: row of the last step that it continues; None for a new one
        ids: its new ids
        position: of the first new id
        memory: its encoder output
        bias: float32 [vocabulary] added to its logits, or None
        table: of a new row, float16 or float32 [n, prompt_width]: embeddings of ids from the vocabulary's end
            on
        before: prompt ids that were read already, if it reads more of its prompt, or are `known`
        coming: prompt ids that follow in later steps
        choice: how the runtime chooses the next id (see `Runtime.chooses`); None if the caller chooses from
            the logits
        attend: `Step.attention` may be called for this row
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
        """Tell whether its ids are part of a prompt."""
        return self.parent is None or bool(self.before)


@dataclass(frozen=True)
class Step:
    """Result of a step, one entry per row: the id chosen by its `choice`, otherwise the likeliest (int64
    [rows]), and its log probability (float32 [rows]). The id is -1 where the next step reads the end of the
    row's prompt: then the row is sent once more.

    `logits(row)` returns float32 [vocabulary], until the next step, unless all rows have a choice; it costs
    only when called. `attention(row, count)`, until the next step and for a row with `attend`, returns a
    function that any thread may call later and that returns the cross-attention of the row's last `count`
    ids: float16 [heads, count, encoder positions], a softmax over the last axis. It is None unless
    `facts.attends`.
    """

    best: NDArray[np.int64]
    best_log_prob: Floats
    logits: Callable[[int], Floats]
    attention: Callable[[int, int], Looked] | None = None


class RunningBatch(Protocol):
    """Rows that a decoder advances together."""

    def step(self, rows: Sequence[Row]) -> Step:
        """Advance exactly these rows; a row of the last step that no row continues is dropped."""

    def known(self, prompt: Sequence[int]) -> int:
        """Return how many of a prompt's first ids are cached, less than all: a new row may have them as
        `before`.
        """
        return 0


class Runtime(Protocol):
    """Protocol of one engine."""

    @property
    def facts(self) -> EngineFacts:
        """Return its engine.json."""

    def chooses(self, sampling: Sampling) -> bool:
        """Tell whether rows may have this choice; they must then continue with the chosen id."""

    def prepare(self, source: NDArray[Any]) -> Any:
        """Prepare the input of `encode`: features, float16 or float32 [frames, mels]; samples, float32 [160 *
        frames] (only where `facts.takes_samples`); or ids, int64 [n]. Called by the thread that receives
        them, while the batch runs. The memory is released when nothing references it.
        """

    def encode(self, sources: Sequence[Any]) -> Sequence[Memory]:
        """Run the encoder on several inputs at once. It need not be finished when this returns."""

    def batch(self) -> RunningBatch:
        """Return an empty batch."""

    def close(self) -> None:
        """End what it has started; it is not used afterwards."""
