"""Where running rows looked from their last ids: what the times of words are made of (audio/alignment.py)."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from serving.architectures.transformer import Shape

from .caches import HIDDEN, Arena
from .device import Device


class Looking:
    """Cross-attention of some heads (`Shape.step_heads`) for each slot. Steps keep the queries of these
    heads, which costs a copy a layer; scores are made for those who ask.

    `seen`: float16 [slots, heads, memory], layer by layer, once `look` has run.
    """

    def __init__(self, shape: Shape, arena: Arena, device: Device) -> None:
        assert arena.memory is not None
        slots, _, _, length, width = arena.memory.shape
        self.arena, self.scale, pairs = arena, shape.scale or shape.head_width**-0.5, shape.step_heads
        self.heads = {layer: [head for at, head in pairs if at == layer] for layer, _ in sorted(pairs)}
        self.picked = {layer: device.upload(np.array(heads, np.int64)) for layer, heads in self.heads.items()}
        self.queries = {layer: device.zeros(slots, len(heads), width) for layer, heads in self.heads.items()}
        self.seen = device.zeros(slots, len(pairs), length, dtype=torch.float16)

    def keep(self, layer: int, q: Tensor) -> None:
        """Queries [rows, heads, width] of the rows in the first slots."""
        if layer in self.picked:
            torch.index_select(q, 1, self.picked[layer], out=self.queries[layer][: len(q)])

    def keep_some(self, layer: int, q: Tensor, places: Tensor) -> None:
        """The same of the rows in slots `places`."""
        if layer in self.picked:
            self.queries[layer][places] = q.index_select(1, self.picked[layer])

    def look(self, rows: int) -> None:
        """Fill `seen` for the first slots."""
        assert self.arena.memory is not None
        scores = [
            torch.bmm(self.arena.memory[:rows, 2 * layer, head], self.queries[layer][:rows, i, :, None])
            for layer, heads in self.heads.items()
            for i, head in enumerate(heads)
        ]
        whole = torch.cat(scores, 2).transpose(1, 2).float() * self.scale
        places = torch.arange(whole.shape[2], device=whole.device)
        there = places < self.arena.memory_length[:rows, None]
        self.seen[:rows].copy_(whole.masked_fill(~there[:, None], HIDDEN).softmax(-1))
