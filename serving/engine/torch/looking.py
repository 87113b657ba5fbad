"""Record cross-attention of running rows, from which word timestamps are computed (audio/alignment.py)."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from serving.architectures.shape import Shape

from .device import Device


class Looking:
    """Cross-attention of the alignment heads. Steps store the queries of these heads, which costs two small
    copies per layer; scores are computed for a whole text at once, only when requested.

    `queries` has, for each layer with such heads, [slots, positions, heads, width].
    """

    def __init__(self, shape: Shape, device: Device, slots: int, positions: int) -> None:
        pairs = sorted(shape.alignment_heads, key=lambda pair: pair[0])
        self.scale = shape.scale or shape.head_width**-0.5
        heads = {layer: [head for at, head in pairs if at == layer] for layer, _ in pairs}
        self.picked = {layer: device.upload(np.array(own, np.int64)) for layer, own in heads.items()}
        self.keys = device.upload(np.array([2 * at * shape.decoder_heads + head for at, head in pairs]))
        self.queries = {
            layer: device.zeros(slots, positions, len(own), shape.head_width) for layer, own in heads.items()
        }

    def keep(self, layer: int, q: Tensor, slots: Tensor, places: Tensor) -> None:
        """Store queries [rows, heads, width] from one place of each row; `slots` and `places` are int64
        [rows].
        """
        if layer in self.picked:
            self.queries[layer][slots, places] = q.index_select(1, self.picked[layer])

    def copy(self, target: int, source: int) -> None:
        """Copy the contents of one slot into another."""
        for kept in self.queries.values():
            kept[target].copy_(kept[source])

    def look(self, slot: int, places: slice, memory: Tensor) -> Tensor:
        """Return the cross-attention of the row in a slot from its ids at `places`, layer by layer: float16
        [heads, ids, length], a softmax over the last axis. `memory` is its encoder output, [2 * layers,
        heads, length, width].
        """
        queries = torch.cat([kept[slot, places] for kept in self.queries.values()], 1).transpose(0, 1)
        keys = memory.flatten(0, 1).index_select(0, self.keys)
        scores = torch.bmm(queries, keys.transpose(1, 2)).float() * self.scale
        return scores.softmax(-1).half()
