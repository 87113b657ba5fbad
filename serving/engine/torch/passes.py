"""Passes of the decoder over slots on the device: a step of some rows, prompts, a piece of a prompt, or both.
CUDA graphs are recorded of these; what they read and write stays where it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle
from typing import Any, NamedTuple

import torch
from torch import Tensor

from serving.architectures.transformer import Decoder

from ..runtime import Row
from .caches import Arena, Mixed, Reading, Stepping, Watch
from .choosing import Choices, simple
from .device import Device
from .looking import Looking
from .rows import biased, scored
from .slots import Buffers, Joining, PendingStep

RESULTS = 8  # steps of which results may be on their way to the host; three are


class Sizes(NamedTuple):
    """Slots, their positions, positions of an encoder output (0: none), and ids of a prompt that are read
    with a step (0: prompts are read whole).
    """

    slots: int
    positions: int
    memory: int
    piece: int


class Passes:
    """Slots, and what a pass does to them."""

    def __init__(self, decoder: Decoder, device: Device, sizes: Sizes, *, attends: bool) -> None:
        most, positions, memory, piece = sizes
        self.decoder, self.device, self.positions = decoder, device, positions
        self.arena = Arena.empty(decoder.shape, device, most, positions, memory)
        vocabulary = decoder.shape.vocabulary
        self.choices = Choices.empty(device, most, vocabulary, positions)
        self.buffers = Buffers(
            device.zeros(most, dtype=torch.int64),
            device.zeros(most, dtype=torch.int64),
            device.zeros(most, dtype=torch.float32),
            device.zeros(most, vocabulary, dtype=torch.float32),
        )
        self.numbers = device.zeros(most, dtype=torch.int64)  # of slots
        self.numbers.copy_(torch.arange(most))
        self.kernels, self.attention = _kernels(device)
        self.looking = Looking(decoder.shape, device, most, positions) if attends else None
        self.hosts = cycle([self._pinned() for _ in range(RESULTS)])
        self.piece, self.pieces = min(piece, positions), dict[bool, Joining]()  # by whether choices are plain

    def _begin(self, rows: Sequence[Row], slots: Sequence[int]) -> bool:
        """Set up what rows request, and tell whether none needs penalties or random numbers."""
        asked = [row.choice or biased(row) for row in rows]
        self.choices.begin(self.device, slots, asked, [(*row.before, *row.ids) for row in rows])
        return all(simple(one) for one in asked)

    def _read_prompts(
        self,
        ids: Tensor,
        places: Tensor,
        lengths: Tensor,
        table: Tensor | None = None,
        *,
        plain: bool,
        start: Tensor | None = None,
    ) -> None:
        """Read ids [rows, n], padded at the end, into slots `places`, and choose each row's first id. `start`
        is, for a single row, the number of ids read before.
        """
        rows, count = ids.shape
        before = 0 if start is None else start
        self.arena.length[places] = (lengths + before).to(torch.int32)
        positions = (torch.arange(count, device=ids.device) + before).expand(rows, count)
        watch = self._watching(places, lengths - 1)
        caches = Reading(self.arena, self.decoder, places, watch, start, self.attention)
        x = self.decoder(ids, positions, caches, table=table)
        last = x[self.numbers[:rows], lengths - 1]
        logits = scored(self.decoder, last)
        self.buffers.logits[places] = logits
        self._choose(logits, places, plain=plain)

    def _choose(self, logits: Tensor, places: Tensor, *, plain: bool) -> None:
        buffers = self.buffers
        if self.kernels and plain:
            out = (buffers.chosen, buffers.log_probs, buffers.ids)
            self.kernels.choose(self.choices, logits, places, *out)
            return
        token, log_prob = self.choices.choose(logits, places, plain=plain)
        buffers.chosen[places], buffers.ids[places] = token, token
        buffers.log_probs[places] = log_prob

    def _compute(self, size: int, *, plain: bool) -> None:
        """Compute one step of the first `size` slots."""
        buffers, arena = self.buffers, self.arena
        positions = arena.length[:size, None].long()
        places = self.numbers[:size]
        watch = self._watching(places, positions[:, 0])
        caches = Stepping(arena, self.decoder, size, self.attention, watch)
        x = self.decoder(buffers.ids[:size, None], positions, caches)
        logits = scored(self.decoder, x[:, -1], buffers.logits[:size])
        self._choose(logits, places, plain=plain)
        arena.length[:size].add_(1).clamp_(max=self.positions - 1)

    def _mix(self, size: int, *, plain: bool) -> None:
        """Compute one step of the first `size` slots and read the piece that was given. If its slot is one of
        them, what the step makes of it is in vain: written after the piece, and then undone.
        """
        buffers, arena, length = self.buffers, self.arena, self.piece
        given, places = self.pieces[plain].given[:, 0], self.numbers[:size]
        slot, count, start = (given[length + i : length + i + 1] for i in range(3))
        filled, chosen = (start + count).to(torch.int32), self.choices.kept(slot, plain=plain)
        arena.length[slot] = filled
        ids = torch.cat([buffers.ids[:size], given[:length]])
        positions = torch.cat([arena.length[:size].long(), start + torch.arange(length, device=ids.device)])
        step = Stepping(arena, self.decoder, size, self.attention)
        read = Reading(arena, self.decoder, slot, None, start, self.attention)
        (x,) = self.decoder(ids[None], positions[None], Mixed(step, read))
        self._choose(scored(self.decoder, x[:size], buffers.logits[:size]), places, plain=plain)
        arena.length[:size].add_(1).clamp_(max=self.positions - 1)
        arena.length[slot] = filled
        self.choices.undo(slot, chosen)
        logits = scored(self.decoder, x[size + count - 1])
        buffers.logits[slot] = logits
        self._choose(logits, slot, plain=plain)

    def _watching(self, slots: Tensor, last: Tensor) -> Watch | None:
        """Record the queries of each row's last id, in slots [rows], at its position `last` [rows]."""
        looking = self.looking
        if looking is None:
            return None
        rows = self.numbers[: len(slots)]

        def watch(layer: int, q: Tensor) -> None:
            looking.keep(layer, q[:, :, 0] if q.shape[2] == 1 else q[rows, :, last], slots, last)

        return watch

    def _to_host(self) -> PendingStep:
        """Copy the chosen ids to the host."""
        ids, log_probs = next(self.hosts)
        ids.copy_(self.buffers.chosen, non_blocking=True)
        log_probs.copy_(self.buffers.log_probs, non_blocking=True)
        return PendingStep(ids, log_probs, self.device.event())

    def _pinned(self) -> tuple[Tensor, Tensor]:
        """Allocate the host memory for a step's results."""
        ids, log_probs = (
            torch.empty(one.shape, dtype=one.dtype, pin_memory=self.device.gpu)
            for one in (self.buffers.chosen, self.buffers.log_probs)
        )
        return ids, log_probs


def _kernels(device: Device) -> tuple[Any, Any]:
    """Return the modules of kernels in Triton's language, on a GPU."""
    if not device.gpu:
        return None, None
    from . import attention, kernels

    return kernels, attention
