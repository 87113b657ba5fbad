"""What the running batch stores on the device, and results on their way to the host."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from ..runtime import Row
from .choosing import simple
from .pieces import Coming


@dataclass(frozen=True, eq=False)
class TorchMemory:
    """An encoder output, [2 * layers, heads, length, head width], valid once the work in `coming` is done."""

    parts: Tensor
    length: int
    coming: Coming

    def ready(self, *, wait: bool = False) -> bool:
        return self.coming.ready(wait=wait)

    @property
    def failed(self) -> Exception | None:
        return self.coming.error

    def arrive(self, stream: Any) -> None:
        """Make work queued on `stream` from now on wait for it."""
        self.coming.queue()
        if self.coming.event is not None:
            stream.wait_event(self.coming.event)
            self.parts.record_stream(stream)


@dataclass(frozen=True)
class PendingStep:
    """A step that was started: ids and log probabilities of all slots, on the host after `event`."""

    ids: Tensor
    log_probs: Tensor
    event: Any

    def result(self) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Wait for it and return int64 [rows] ids and float32 [rows] log probabilities."""
        if self.event is not None:
            self.event.synchronize()
        return self.ids.numpy(), self.log_probs.numpy()


@dataclass
class Slot:
    """Contents of a slot: its encoder output, also after its row has gone, whether the row needs neither
    penalties nor random numbers, and whether its cross-attention is requested.
    """

    memory: Callable[[], TorchMemory | None] = lambda: None
    plain: bool = True
    attends: bool = False

    def fill(self, row: Row) -> None:
        """Assign it to a row."""
        self.memory = (lambda: None) if row.memory is None else weakref.ref(row.memory)
        self.plain = row.choice is None or simple(row.choice)
        self.attends = row.attend


@dataclass
class Buffers:
    """Tensors that steps read and write, [slots] each: the last id, and the results."""

    ids: Tensor
    chosen: Tensor
    log_probs: Tensor
    logits: Tensor
    graphs: dict[tuple[int, bool], Callable[[], object]] = field(default_factory=dict)


@dataclass(frozen=True)
class Joining:
    """Reads the prompts of a fixed number of rows, padded to one length. `given`, int64 [length + 2, rows],
    has ids, slots, and the number of ids; of a graph for a piece also the number of ids read before.
    """

    given: Tensor
    length: int
    read: Callable[[], object]
