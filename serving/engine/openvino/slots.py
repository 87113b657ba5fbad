"""The running batch of decoder-only models: each row has a slot of the caches, outside OpenVINO."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import openvino as ov
from numpy.typing import NDArray

from ..runtime import Floats, Row, Step
from .rows import MASKED, Biases, chosen
from .runtime import OpenVinoRuntime, bits


class SlotBatch:
    """Rows that step together, each with its own cache slot and time axis, for decoder-only models, whose
    prompts are long.

    On a common time axis, each joining prompt would add its length in columns to every other row. Here a
    prompt is read alone and copied into its slot.
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
        """Advance exactly these rows, joining rows last: each with one new id, or with more of its prompt."""
        kept = [row for row in rows if row.parent is not None]
        assert all(row.parent is None for row in rows[len(kept) :])
        self._arrange([row.parent or 0 for row in kept])
        lengths = [row.position + len(row.ids) for row in rows]
        most = max(length + row.coming for length, row in zip(lengths, rows, strict=True))
        self._reserve(len(rows), most + 1, len(kept))
        step = max((slot + 1 for slot, row in enumerate(rows) if not row.reads), default=0)
        logits = np.empty((len(rows), self.runtime.facts.vocabulary), np.float32)
        log_sums = np.empty(len(rows), np.float32)
        if step:
            logits[:step], log_sums[:step] = self._continue(rows[:step])
        for slot, row in enumerate(rows):
            if row.reads:
                logits[slot : slot + 1], log_sums[slot : slot + 1] = self._read(slot, row)
        self.lengths = np.array(lengths, np.int64)
        return chosen(logits, log_sums)

    def _arrange(self, parents: Sequence[int]) -> None:
        """Move each running row's past into its slot."""
        moved = [(slot, parent) for slot, parent in enumerate(parents) if slot != parent]
        if moved:
            self._reserve(len(parents), 0, len(self.lengths))
            to, origin = (list(column) for column in zip(*moved, strict=True))
            used = int(self.lengths[origin].max())
            for tensor in self.caches:
                bits(tensor)[to, :, :used] = bits(tensor)[origin, :, :used]
        self.lengths = self.lengths[list(parents)]

    def _reserve(self, rows: int, length: int, kept: int) -> None:
        """Make the caches large enough; the first `kept` slots keep their contents. An empty batch may
        shrink.
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
        """Advance each row by one id. Rows that are reading a prompt step along, and their first id is
        computed twice.
        """
        count, shape = len(rows), list(self.caches[0].shape)
        places = self.lengths[:count, None]
        seen = np.arange(shape[2] + 1) < places
        seen[:, -1] = True  # an id sees itself
        ids = np.array([row.ids[:1] for row in rows], np.int64)
        mask = np.where(seen, np.float32(0), MASKED)[:, None, None]
        out = self._infer(ids, places, mask, rows, self._slots(0, count))
        for name, tensor in zip(self.names, self.caches, strict=True):
            bits(tensor)[np.arange(count), :, self.lengths[:count]] = bits(
                self.request.get_tensor(f"present.{name}")
            )[:, :, 0]
        return out

    def _slots(self, first: int, end: int) -> list[ov.Tensor]:
        """Return those slots of the caches, whole."""
        begin, ends = ov.Coordinate([first, 0, 0, 0]), ov.Coordinate([end, *list(self.caches[0].shape)[1:]])
        return [ov.Tensor(tensor, begin, ends) for tensor in self.caches]

    def _read(self, slot: int, row: Row) -> tuple[Floats, Floats]:
        """Read a prompt, or more of it, alone."""
        count, start, shape = len(row.ids), len(row.before), list(self.caches[0].shape)
        # Without a past one masked column, for graphs do not like empty ones.
        width = shape[2] if start else 1
        seen = np.concatenate(
            [
                np.broadcast_to(np.arange(width) < start, (count, width)),
                np.tril(np.ones((count, count), bool)),
            ],
            1,
        )
        if start:
            views = self._slots(slot, slot + 1)
        else:
            empty = ov.Shape([1, shape[1], 1, shape[3]])
            views = [ov.Tensor(self.runtime.memory_type, empty) for _ in self.caches]
            for view in views:
                bits(view).fill(0)
        mask = np.where(seen, np.float32(0), MASKED)[None, None]
        places = np.arange(count)[None] + row.position
        out = self._infer(np.array([row.ids], np.int64), places, mask, [row], views)
        for name, tensor in zip(self.names, self.caches, strict=True):
            bits(tensor)[slot, :, start : start + count] = bits(self.request.get_tensor(f"present.{name}"))[0]
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
