"""Passes of the decoder over slots on the device: a step of some rows, prompts, a piece of a prompt, or a
step with pieces. CUDA graphs are recorded of these; what they read and write stays where it is.
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

PROMPTS = 2  # that a step reads pieces of, at most
RESULTS = 8  # steps of which results may be on their way to the host; three are


class Sizes(NamedTuple):
    """Slots, their positions, positions of an encoder output (0: none), and ids of prompts that are read with
    a step (0: prompts are read whole).
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
        # The last place is nobody's: of the second prompt of a step that reads one.
        self.choices = Choices.empty(device, most + 1, vocabulary, positions)
        self.buffers = Buffers(
            device.zeros(most + 1, dtype=torch.int64),
            device.zeros(most + 1, dtype=torch.int64),
            device.zeros(most + 1, dtype=torch.float32),
            device.zeros(most + 1, vocabulary, dtype=torch.float32),
        )
        self.numbers = device.zeros(most, dtype=torch.int64)  # of slots
        self.numbers.copy_(torch.arange(most))
        self.kernels, self.attention = _kernels(device)
        self.looking = Looking(decoder.shape, device, most, positions) if attends else None
        self.hosts = cycle([self._pinned() for _ in range(RESULTS)])
        self.piece, self.pieces = min(piece, positions), dict[bool, Joining]()  # by whether choices are plain
        self.read_with = device.zeros(2 * self.piece + 5 * PROMPTS, dtype=torch.int64)  # see `_mix`

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
        more = None if start is None else (start, lengths)
        caches = Reading(self.arena, self.decoder, places, watch, more, self.attention)
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
        """Compute one step of the first `size` slots and read pieces of prompts: `read_with` has their ids
        and positions, and for each prompt its slot, its place in `choices` and `buffers`, how many of its ids
        were read before and are read now, and which of all these ids is its last. If a slot is one of those
        that step, what the step makes of it is in vain: written after the piece, and then undone.
        """
        buffers, arena, device = self.buffers, self.arena, self.read_with.device
        ids, positions, prompts = self.read_with.split([self.piece, self.piece, 5 * PROMPTS])
        slots, places, starts, counts, last = prompts.view(5, PROMPTS)
        filled, chosen = (starts + counts).to(torch.int32), self.choices.kept(places, plain=plain)
        arena.length[slots] = filled
        ids = torch.cat([buffers.ids[:size], ids])
        positions = torch.cat([arena.length[:size].long(), positions])
        step = Stepping(arena, self.decoder, size, self.attention)
        read = Reading(arena, self.decoder, slots, None, (starts, counts), self.attention)
        (x,) = self.decoder(ids[None], positions[None], Mixed(step, read))
        ends = torch.cat([torch.arange(size, device=device), size + last])
        logits = scored(self.decoder, x[ends])
        buffers.logits[:size] = logits[:size]
        self._choose(logits[:size], self.numbers[:size], plain=plain)
        arena.length[:size].add_(1).clamp_(max=self.positions - 1)
        arena.length[slots] = filled
        self.choices.undo(places, chosen)
        buffers.logits[places] = logits[size:]
        self._choose(logits[size:], places, plain=plain)

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
