"""The running batch of decoders alone: a slot of the caches for each row, outside OpenVINO."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import openvino as ov
from numpy.typing import NDArray

from ..runtime import Floats, Row, Step
from .rows import MASKED, Biases, chosen
from .runtime import OpenVinoRuntime, bits


class SlotBatch:
    """Rows that step together, each with a slot of the caches and a time axis of its own: for decoders alone,
    whose prompts are long.

    On a common time axis, each prompt that joins would be as many columns for every other row. Here it is
    read alone, and copied into its slot.
    """

    GROWTH = 64

    def __init__(self, runtime: OpenVinoRuntime) -> None:
        self.runtime = runtime
        self.request = runtime.decoder.create_infer_request()
        self.biases = Biases(runtime.facts.vocabulary)
        self.names = [f"{c}{i}" for i in range(runtime.facts.layers) for c in "kv"]
        self.lengths = np.zeros(0, np.int64)
        self.caches = self._empty(1, self.GROWTH)

    def _empty(self, rows: int, length: int) -> list[ov.Tensor]:
        shape = ov.Shape([rows, self.runtime.facts.heads, length, self.runtime.facts.head_width])
        caches = [ov.Tensor(self.runtime.memory_type, shape) for _ in self.names]
        for tensor in caches:
            bits(tensor).fill(0)  # masked, but NaN times zero would still be NaN
        return caches

    def step(self, rows: Sequence[Row]) -> Step:
        """Advance to exactly these rows: first those that run, with one new id each, then those that join
        with their prompts.
        """
        running = [row for row in rows if row.parent is not None]
        assert all(row.parent is None for row in rows[len(running) :])
        self._arrange([row.parent or 0 for row in running])
        lengths = [*self.lengths.tolist(), *(len(row.ids) for row in rows[len(running) :])]
        self._reserve(len(rows), max(lengths) + 1, len(running))
        results = [self._continue(running)] if running else []
        results += [self._read(slot, row) for slot, row in enumerate(rows[len(running) :], len(running))]
        logits, log_sums = zip(*results, strict=True)
        self.lengths = np.array(lengths, np.int64) + (np.arange(len(rows)) < len(running))
        return (
            chosen(np.concatenate(logits), np.concatenate(log_sums))
            if len(results) > 1
            else chosen(logits[0], log_sums[0])
        )

    def _arrange(self, parents: Sequence[int]) -> None:
        """Put each running row's past into its slot."""
        moved = [(slot, parent) for slot, parent in enumerate(parents) if slot != parent]
        if moved:
            self._reserve(len(parents), 0, len(self.lengths))
            to, origin = (list(column) for column in zip(*moved, strict=True))
            used = int(self.lengths[origin].max())
            for tensor in self.caches:
                bits(tensor)[to, :, :used] = bits(tensor)[origin, :, :used]
        self.lengths = self.lengths[list(parents)]

    def _reserve(self, rows: int, length: int, kept: int) -> None:
        """Make the caches large enough; the first `kept` slots stay as they are. An empty batch may become
        small again.
        """
        had, room = self.caches[0].shape[0], self.caches[0].shape[2]
        wanted = max(length if not kept else max(length, room), 1)
        wanted = -(-wanted // self.GROWTH) * self.GROWTH
        if rows <= had and wanted == room:
            return
        old = self.caches
        self.caches = self._empty(max(rows, had), wanted)
        for tensor, before in zip(self.caches, old, strict=True):
            bits(tensor)[:kept, :, : min(room, wanted)] = bits(before)[:kept, :, : min(room, wanted)]

    def _continue(self, rows: Sequence[Row]) -> tuple[Floats, Floats]:
        count, shape = len(rows), list(self.caches[0].shape)
        places = self.lengths[:count, None]
        seen = np.arange(shape[2] + 1) < places
        seen[:, -1] = True  # an id sees itself
        views = [
            ov.Tensor(tensor, ov.Coordinate([0, 0, 0, 0]), ov.Coordinate([count, *shape[1:]]))
            for tensor in self.caches
        ]
        ids = np.array([row.ids for row in rows], np.int64)
        out = self._infer(ids, places, np.where(seen, np.float32(0), MASKED)[:, None, None], rows, views)
        for name, tensor in zip(self.names, self.caches, strict=True):
            bits(tensor)[np.arange(count), :, self.lengths[:count]] = bits(
                self.request.get_tensor(f"present.{name}")
            )[:, :, 0]
        return out

    def _read(self, slot: int, row: Row) -> tuple[Floats, Floats]:
        """A prompt, alone."""
        count = len(row.ids)
        ids, places = np.array([row.ids], np.int64), np.arange(count)
        # A past of one masked column, for graphs do not like empty ones.
        seen = np.tril(np.ones((count, count), bool))
        mask = np.where(np.pad(seen, [(0, 0), (1, 0)]), np.float32(0), MASKED)[None, None]
        shape = list(self.caches[0].shape)
        views = [
            ov.Tensor(self.runtime.memory_type, ov.Shape([1, shape[1], 1, shape[3]])) for _ in self.caches
        ]
        for view in views:
            bits(view).fill(0)
        out = self._infer(ids, places[None] + row.position, mask, [row], views)
        for name, tensor in zip(self.names, self.caches, strict=True):
            bits(tensor)[slot, :, :count] = bits(self.request.get_tensor(f"present.{name}"))[0]
        return out

    def _infer(
        self,
        ids: NDArray[np.int64],
        positions: NDArray[np.int64],
        mask: Floats,
        rows: Sequence[Row],
        past: Sequence[ov.Tensor],
    ) -> tuple[Floats, Floats]:
        bias = self.biases.of([row.bias for row in rows])
        inputs = {f"past.{name}": tensor for name, tensor in zip(self.names, past, strict=True)}
        if width := self.runtime.facts.prompt_width:
            table = rows[0].table  # a prompt is read alone, and what runs goes on with ids of the vocabulary
            inputs["table"] = np.zeros((1, width), np.float32) if table is None else table.astype(np.float32)
        self.request.infer({"ids": ids, "positions": positions, "mask": mask, "bias": bias, **inputs})
        return self.request.get_tensor("logits").data.copy(), self.request.get_tensor("log_sum").data.copy()
