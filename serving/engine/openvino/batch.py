"""The running batch: rows that a decoder advances together, one token each at a time.

The decoder keeps its self-attention keys and values inside OpenVINO, one time axis for all rows. A row that
joins in the middle masks what was there before it; a row that leaves is left out of `beam_idx`; beam search
repeats or permutes indices. Measured on 2 cores, Whisper-base, batch 8: 12 ms a step against 14 ms with
caches held outside and 289 ms for moving state out and back in at every join.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import openvino as ov
from numpy.typing import NDArray

from ..runtime import Floats, Row, Step
from .graphs import Graphs, Memory, bits

MASKED = np.float32(-1e9)
NOWHERE = -1


def biases(rows: Sequence[Floats | None], vocabulary: int) -> Floats:
    """Float32 [rows, vocabulary], or [1, 1] when there is none."""
    if all(bias is None for bias in rows):
        return np.zeros((1, 1), np.float32)
    out = np.zeros((len(rows), vocabulary), np.float32)
    for row, bias in zip(out, rows, strict=True):
        if bias is not None:
            row[:] = bias
    return out


def chosen(logits: Floats, log_sum: Floats) -> Step:
    """A step's answer from logits [rows, vocabulary] and log(sum(exp(logits))) [rows]."""
    best = logits.argmax(-1)  # in the graph it is a TopK that takes 0.8 ms a row; here 0.03
    return Step(best, logits[np.arange(len(best)), best] - log_sum, logits.__getitem__)


class Slots:
    """Rows that step together, each with a slot of the caches and a time axis of its own: for decoders alone,
    whose prompts are long.

    On a common time axis, each prompt that joins would be as many columns for every other row. Here it is
    read alone, and copied into its slot.
    """

    GROWTH = 64

    def __init__(self, graphs: Graphs) -> None:
        self.graphs = graphs
        self.request = graphs.decoder.create_infer_request()
        self.names = [f"{c}{i}" for i in range(graphs.facts.layers) for c in "kv"]
        self.lengths = np.zeros(0, np.int64)
        self.caches = self._empty(1, self.GROWTH)

    def _empty(self, rows: int, length: int) -> list[ov.Tensor]:
        shape = ov.Shape([rows, self.graphs.facts.heads, length, self.graphs.facts.head_width])
        caches = [ov.Tensor(self.graphs.memory_type, shape) for _ in self.names]
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
            ov.Tensor(self.graphs.memory_type, ov.Shape([1, shape[1], 1, shape[3]])) for _ in self.caches
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
        bias = biases([row.bias for row in rows], self.graphs.facts.vocabulary)
        inputs = {f"past.{name}": tensor for name, tensor in zip(self.names, past, strict=True)}
        if width := self.graphs.facts.prompt_width:
            table = rows[0].table  # a prompt is read alone, and what runs goes on with ids of the vocabulary
            inputs["table"] = np.zeros((1, width), np.float32) if table is None else table.astype(np.float32)
        self.request.infer({"ids": ids, "positions": positions, "mask": mask, "bias": bias, **inputs})
        return self.request.get_tensor("logits").data.copy(), self.request.get_tensor("log_sum").data.copy()


class Batch:
    """Rows that step together. `columns` says which places of each row the columns of the common time axis
    hold; NOWHERE is another row's.
    """

    COMPACT_SLACK = 256

    def __init__(self, graphs: Graphs) -> None:
        self.graphs = graphs
        self.request = graphs.decoder.create_infer_request()
        self.columns = np.zeros((0, 0), np.int32)
        self.slots: list[Memory | None] = []
        self.shown: list[Memory | None] = []
        self.tensors: list[ov.Tensor] = []

    def step(self, rows: Sequence[Row]) -> Step:
        """Advance to exactly these rows. Rows may bring different numbers of ids; shorter ones are padded on
        the left and masked.
        """
        if not len(self.columns) or all(row.parent is None for row in rows):
            self.request.reset_state()
            self.columns = np.zeros((0, 0), np.int32)
        self._compact(rows)
        width = max(len(row.ids) for row in rows)
        ids = np.zeros((len(rows), width), np.int64)
        places = np.full((len(rows), width), NOWHERE, np.int32)
        for i, row in enumerate(rows):
            count = len(row.ids)
            ids[i, -count:] = row.ids
            places[i, -count:] = np.arange(row.position, row.position + count)
        nothing = np.full(self.columns.shape[1], NOWHERE, np.int32)
        past = np.stack([nothing if row.parent is None else self.columns[row.parent] for row in rows])
        self.columns = np.concatenate([past, places], 1)
        inputs: dict[str, Any] = {
            "ids": ids,
            "positions": np.maximum(places, 0).astype(np.int64),
            "mask": self._mask(places),
            "bias": biases([row.bias for row in rows], self.graphs.facts.vocabulary),
            "beam_idx": np.array([row.parent or 0 for row in rows], np.int32),
        }
        self._set_memory([row.memory for row in rows])
        self.request.infer({name: value for name, value in inputs.items() if self.graphs.takes(name)})
        return chosen(self.request.get_tensor("logits").data, self.request.get_tensor("log_sum").data)

    def _mask(self, places: NDArray[np.int32]) -> Floats:
        """Float32 [rows, 1, new, past + new]: own columns up to the id itself. A padding id sees itself, so
        that no softmax is empty.

        With a relative bias [rows, heads, new, past + new]: it is added where a column is seen.
        """
        width = places.shape[1]
        back = (
            places[:, :, None] - self.columns[:, None, :]
        )  # how far back each column lies, as seen from each new id
        seen = (back >= 0) & (self.columns >= 0)[:, None, :] & (places >= 0)[:, :, None]
        seen[:, :, -width:] |= np.eye(width, dtype=bool)[None]
        relative = self.graphs.relative_bias
        if relative is None:
            return np.where(seen, np.float32(0), MASKED)[:, None]
        bias = relative[:, np.clip(back, 0, relative.shape[1] - 1)].transpose(1, 0, 2, 3)
        return np.where(seen[:, None], bias, MASKED)

    def _compact(self, rows: Sequence[Row]) -> None:
        """Drop columns that no row uses any more once there are many of them; it moves the whole state, so it
        must be rare.
        """
        kept = [row.parent for row in rows if row.parent is not None]
        used = (self.columns[kept] >= 0).any(0) if kept else np.zeros(self.columns.shape[1], bool)
        if self.columns.shape[1] < 2 * int(used.sum()) + self.COMPACT_SLACK:
            return
        for state in self.request.query_state():
            state.state = ov.Tensor(np.ascontiguousarray(state.state.data[:, :, used]))
        self.columns = self.columns[:, used]

    def _set_memory(self, wanted: Sequence[Memory | None]) -> None:
        """Hand over the encoder memory of all rows, [rows, heads, length, head width]; only what changed
        since the last step is copied.
        """
        if wanted[0] is None or (
            len(wanted) == len(self.shown) and all(a is b for a, b in zip(wanted, self.shown, strict=True))
        ):
            return
        running = {id(memory) for memory in wanted}
        for memory in self.shown:
            if memory is not None and id(memory) not in running:
                self.graphs.remember(memory)  # its text has ended and may be aligned next
        memories = [memory for memory in wanted if memory is not None]
        facts, count, length = self.graphs.facts, len(memories), max(memory.length for memory in memories)
        if not self.tensors or self.tensors[0].shape[0] < count or self.tensors[0].shape[2] != length:
            rows = max(count, 1 if not self.tensors else 2 * count)
            shape = [rows, facts.heads, length, facts.head_width]
            self.tensors = [
                ov.Tensor(self.graphs.memory_type, ov.Shape(shape)) for _ in range(2 * facts.layers)
            ]
            for tensor in self.tensors:
                bits(tensor).fill(0)  # masked, but NaN times zero would still be NaN
            self.slots = []
        self._fill(memories)
        cross_mask = np.where(
            np.arange(length) < np.array([[memory.length] for memory in memories]), np.float32(0), MASKED
        )
        whole = list(self.tensors[0].shape)
        views = [
            ov.Tensor(tensor, ov.Coordinate([0, 0, 0, 0]), ov.Coordinate([count, *whole[1:]]))
            for tensor in self.tensors
        ]
        names = [f"memory.{c}{i}" for i in range(facts.layers) for c in "kv"]
        for name, view in zip(names, views, strict=True):
            self.request.set_tensor(name, view)
        self.request.set_tensor("cross_mask", ov.Tensor(np.ascontiguousarray(cross_mask[:, None, None])))
        self.shown = list(wanted)

    def _fill(self, memories: Sequence[Memory]) -> None:
        self.slots += [None] * (len(memories) - len(self.slots))
        for i, memory in enumerate(memories):
            if self.slots[i] is memory:
                continue
            for tensor, part in zip(self.tensors, memory.parts, strict=True):
                bits(tensor)[i, :, : memory.length] = part
                bits(tensor)[i, :, memory.length :] = 0
            self.slots[i] = memory
