"""Run the encoder of texts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from conch.bundle import EngineFacts
from serving.architectures.transformer import Encoder

from .device import Device, attention, worth_recording

PADDED_TO = 16  # texts of similar length share a shape
# What graphs read: ids of each text, padded, how many texts, and ids of all.
LENGTHS, TEXTS, MOST = (16, 32, 64, 128, 256, 512), (1, 2, 4, 8), 2048


@dataclass(frozen=True)
class TextGraph:
    """A CUDA graph that computes keys and values of texts: `ids` int64 [rows, length], padded, with `lengths`
    int64 [rows]; `memory` [rows, 2 * layers, heads, length, width].
    """

    ids: Tensor
    lengths: Tensor
    memory: Tensor
    run: Callable[[], object]


class TorchTextEncoder:
    """Map ids to keys and values; on a GPU with graphs where the host would be the slower part."""

    def __init__(self, encoder: Encoder, device: Device, facts: EngineFacts) -> None:
        self.encoder, self.device, self.facts = encoder, device, facts
        self.graphs = self.recorded() if device.gpu else {}

    def read(self, texts: Sequence[Tensor]) -> Tensor:
        """Map ids int64 [n] each to [texts or more, 2 * layers, heads, longest or more, width], which may
        belong to a graph: work queued later may overwrite it.
        """
        count, longest = len(texts), max(len(text) for text in texts)
        fits = [size for size in self.graphs if size[0] >= count and size[1] >= longest]
        size = min(fits, key=lambda size: size[0] * size[1], default=None)
        most = self.facts.encoder_positions
        rows, length = size or (count, min(-(-longest // PADDED_TO) * PADDED_TO, most))
        padded, lengths = np.full((rows, length), self.facts.pad_id, np.int64), np.zeros(rows, np.int64)
        for row, text in enumerate(texts):
            padded[row, : len(text)], lengths[row] = text.numpy(), len(text)
        ids, known = self.device.upload(padded), self.device.upload(lengths)
        if size is None:
            return self._memory(ids, known)
        graph = self.graphs[size]
        graph.ids.copy_(ids)
        graph.lengths.copy_(known)
        graph.run()
        return graph.memory

    def _memory(self, ids: Tensor, lengths: Tensor, out: Tensor | None = None) -> Tensor:
        seen = torch.arange(ids.shape[1], device=ids.device) < lengths[:, None]
        with attention():
            return self.encoder.memory(ids, seen, out)

    def recorded(self) -> dict[tuple[int, int], TextGraph]:
        """Return graphs by number and length of texts; one runs at a time, so all share memory."""
        shape, device = self.encoder.shape, self.device
        most = min(MOST, worth_recording(self.encoder))
        sizes = [(rows, length) for length in LENGTHS for rows in TEXTS if rows * length <= most]
        sizes = [size for size in sizes if size[1] <= self.facts.encoder_positions]
        parts, heads, width = 2 * shape.decoder_layers, shape.decoder_heads, shape.head_width
        each, pool, made = parts * heads * width, device.pool(), {}
        whole = device.empty(most * each)
        for rows, length in reversed(sizes):
            ids = device.zeros(rows, length, dtype=torch.int64)
            lengths = device.zeros(rows, dtype=torch.int64)
            memory = whole[: rows * length * each].view(rows, parts, heads, length, width)
            read = partial(self._memory, ids, lengths, memory)
            made[rows, length] = TextGraph(ids, lengths, memory, device.graph(device.encodes, read, pool))
        return made
