"""The running batch on the device: a slot for each row, one CUDA graph for each number of rows, and steps
that start before the host has read the last one's result.

Where it can, the device chooses the next ids itself, so the next step runs while the host reads the last
one's result. Rows that have ended by then are computed once in vain; rows whose ids the host chooses (beams)
wait for it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from serving.architectures.transformer import Decoder

from ..runtime import Row, RunningBatch, Step
from ..sampling import Looked
from .choosing import simple
from .device import Device, worth_recording
from .passes import PROMPTS, Passes, Sizes
from .pieces import Pieces
from .rows import in_order, is_plain, numbered
from .slots import Joining, PendingStep, Slot

# Rows that a graph is recorded for; a step takes the next larger one.
BUCKETS = (1, 2, 4, 8, 12, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256)
READ_AT_ONCE = 4096  # ids of prompts, padding included
FEW = 4  # prompts that are read one by one, by graphs, rather than together, kernel by kernel
# What graphs read: ids of a prompt, where an encoder reads the rest and where none does, and rows.
SHORT, WHOLE = (8,), (16, 32, 64, 128, 256)
JOINING = (8, 4, 2, 1)
SHORTEST = 4  # a prompt of less than a fourth of a piece is cheaper alone, if there is a graph for it


class DeviceBatch(Passes, RunningBatch):
    """A RunningBatch (runtime.py), with a slot for each row; made once, emptied by `clear`. `attends`:
    cross-attention is returned.
    """

    def __init__(self, decoder: Decoder, device: Device, sizes: Sizes, *, attends: bool = False) -> None:
        super().__init__(decoder, device, sizes, attends=attends)
        most = sizes.slots
        self.encoders = Pieces(device)
        self.buckets = [size for size in BUCKETS if size < most] + [most]
        self.slots = [Slot() for _ in range(most)]
        self.where: list[int] = []  # the slot of each row of the last step
        self.pending: PendingStep | None = None
        self.joining: dict[tuple[int, int], Joining] = {}  # by rows and length
        self.mixed: dict[tuple[int, bool], Callable[[], object]] = {}  # steps that read a piece, as graphs
        self.ending: set[int] = set()  # slots of which the pending step reads the prompt's end
        with torch.inference_mode(), device.on(device.steps):
            self._record()

    def _record(self) -> None:
        self.arena.memory_length.fill_(1)  # attention to nothing at all is not a number
        if self.arena.memory is not None:
            self.record_prompts(SHORT)
        elif self.device.gpu:
            self.record_prompts(WHOLE)
        pool = self.device.pool() if self.piece else None
        for plain in (True, False) if self.piece else ():
            self.pieces[plain] = self._joining(1, self.piece, pool, plain=plain, more=True)
        for size in self.buckets:
            for plain in (True, False):
                compute = partial(self._compute, size, plain=plain)
                self.buffers.graphs[size, plain] = self.device.graph(self.device.steps, compute)
                if self.piece:
                    mix = partial(self._mix, size, plain=plain)
                    self.mixed[size, plain] = self.device.graph(self.device.steps, mix, pool)
        if self.looking and self.arena.memory is not None:  # what it needs is there before the first request
            with self.device.on(self.device.looks):
                self.looking.look(0, slice(0, self.positions), self.arena.memory[0])
        self.clear()

    def record_prompts(self, lengths: Sequence[int]) -> None:
        """Record graphs for prompts of at most so many ids."""
        pool, most = self.device.pool(), worth_recording(self.decoder)
        for length in (length for length in reversed(lengths) if length <= self.positions):
            for rows in (rows for rows in JOINING if rows <= len(self.slots) and rows * length <= most):
                self.joining[rows, length] = self._joining(rows, length, pool)

    def _joining(
        self, rows: int, length: int, pool: Any, *, plain: bool = True, more: bool = False
    ) -> Joining:
        """Record a graph that reads prompts, or one `more` piece of a single one: `given` then has another
        line, the number of ids read before.
        """
        given = self.device.zeros(length + 2 + more, rows, dtype=torch.int64)
        given[length], given[length + 1] = torch.arange(rows), 1
        tensors = (given[:length].T, given[length], given[length + 1])
        start = given[length + 2] if more else None
        read = partial(self._read_prompts, *tensors, plain=plain, start=start)
        return Joining(given, length, self.device.graph(self.device.steps, read, pool))

    def close(self) -> None:
        """Drop all graphs; it cannot step any more."""
        self.buffers.graphs.clear()
        self.pieces.clear()
        self.mixed.clear()
        self.joining.clear()
        self.encoders.waiting.clear()

    def clear(self) -> None:
        """Drop all rows."""
        self.where, self.pending, self.ending = [], None, set()
        self.slots = [Slot() for _ in self.slots]
        self.arena.length.zero_()
        self.arena.memory_length.zero_()

    @torch.inference_mode()
    def step(self, rows: Sequence[Row]) -> Step:
        with self.device.on(self.device.steps):
            old = [row for row in rows if row.parent is not None]
            pending, self.pending = self.pending, None
            sources = [self.where[row.parent or 0] for row in old]
            where = self._arrange(old, sources)
            # What reads more of its prompt is read below, over what a step made of its slot meanwhile.
            step = [i for i, row in enumerate(old) if not row.reads or sources[i] in self.ending]
            if step and pending is None:
                self._write_ids([where[i] for i in step], [old[i] for i in step])
                pending, sources = self._launch([where[i] for i in step]), where
            joined = self._join([row for row in rows if row.parent is None], where)
            stepping = {id(old[i]): sources[i] for i in step}
            self.where, self.ending = in_order(rows, where, joined), set()
            read_from = list(self.where)  # before any row moves, which this step's results do not wait for
            reading = [i for i, row in enumerate(rows) if id(row) not in stepping]
            mixed = self._mixable(rows, reading)
            reading = [i for i in reading if i not in mixed]
            slots = [read_from[i] for i in reading]
            read = self._read([rows[i] for i in reading], slots) if reading else None
            if mixed:
                self.pending = self._launch_mixed(rows, mixed)
            elif all(row.choice is not None for row in rows):
                self.pending = self._launch(self._compact(rows))
            self._encode_on()
            ran = [i for i, row in enumerate(rows) if id(row) in stepping]
            parts = (pending, ran, [*stepping.values()]), (read, reading, slots)
            return self._result(rows, parts, read_from)

    def _mixable(self, rows: Sequence[Row], reading: Sequence[int]) -> list[int]:
        """Return the rows, if any, whose prompts or pieces the next step of the others can read, which then
        read the weights once: the longest of those `reading`, and one that fits next to it. Their first ids
        come with that step's.
        """
        if not self.mixed or any(row.choice is None for row in rows):
            return []
        found, room = list[int](), self.piece
        for i in sorted(reading, key=lambda i: -len(rows[i].ids))[: len(rows) - 1]:
            row = rows[i]
            fits = len(found) < PROMPTS and row.table is None and len(row.ids) <= room
            if fits and (found or not self._is_short(row)):
                found.append(i)
                room -= len(row.ids)
        return found

    def _is_short(self, row: Row) -> bool:
        """Tell whether a graph for short prompts reads it sooner."""
        count = len(row.ids)
        few = not row.before and SHORTEST * count < self.piece
        return few and is_plain(row) and bool(self._graph_for([count]))

    def _launch_mixed(self, rows: Sequence[Row], reading: Sequence[int]) -> PendingStep:
        """Queue a step of all other rows that reads pieces as well."""
        where = self._compact(rows)
        slots = [where[i] for i in reading]
        others = [slot for slot in where if slot not in slots]
        plain = all(self.slots[one].plain for one in where)
        self._give([rows[i] for i in reading], slots)
        self.mixed[self._bucket(max(others) + 1), plain]()
        self.ending = {slot for i, slot in zip(reading, slots, strict=True) if not rows[i].coming}
        return self._to_host()

    def _give(self, rows: Sequence[Row], slots: Sequence[int]) -> None:
        """Write pieces where a step reads them; see `_mix`."""
        self._begin(rows, slots)
        given, at = np.zeros(2 * self.piece + 5 * PROMPTS, np.int64), 0
        ids, positions, prompts = np.split(given, [self.piece, 2 * self.piece])
        columns = prompts.reshape(5, PROMPTS).T
        for column, row, slot in zip(columns, rows, slots, strict=False):
            start, count = len(row.before), len(row.ids)
            ids[at : at + count], positions[at : at + count] = row.ids, range(start, start + count)
            at += count
            column[:] = slot, slot, start, count, at - 1
        for column in columns[len(rows) :]:  # none: nothing is read, and what is chosen is nobody's
            column[:] = slots[0], len(self.slots), columns[0][2] + columns[0][3], 0, 0
        self.read_with.copy_(self.device.upload(given))

    def _encode_on(self) -> None:
        """Queue one more piece of encoder work after the last queued step."""
        if self.encoders.waiting:
            self.encoders.next(self.pending.event if self.pending else self.device.event())

    def _result(
        self,
        rows: Sequence[Row],
        parts: Sequence[tuple[PendingStep | None, Sequence[int], Sequence[int]]],
        read_from: Sequence[int],
    ) -> Step:
        """Collect what steps made, each with its rows and their slots."""
        best, log_probs = np.full(len(rows), -1, np.int64), np.zeros(len(rows), np.float32)
        for pending, at, slots in parts:
            if pending is not None and slots:
                ids, probs = pending.result()
                best[at], log_probs[at] = ids[list(slots)], probs[list(slots)]
        attention = partial(self._looked, rows, read_from) if self.looking else None
        return Step(best, log_probs, lambda row: self._logits(read_from[row]), attention)

    @torch.inference_mode()
    def _logits(self, slot: int) -> NDArray[np.float32]:
        with self.device.on(self.device.steps):
            logits = self.buffers.logits[slot] + self.choices.bias[slot]
            return np.asarray(logits.cpu().numpy())

    @torch.inference_mode()
    def _looked(self, rows: Sequence[Row], slots: Sequence[int], row: int, count: int) -> Looked:
        """See Step.attention. Steps that read the ids are over, and the one that runs now writes after them,
        so neither is waited for; those that come may have another row there.
        """
        assert self.looking
        end, memory = rows[row].position + len(rows[row].ids), rows[row].memory.parts
        with self.device.on(self.device.looks):
            seen = self.looking.look(slots[row], slice(end - count, end), memory)
            if self.device.gpu:
                memory.record_stream(self.device.looks)
                self.device.steps.wait_event(self.device.event())
        return partial(self._fetched, seen)

    def _fetched(self, seen: Tensor) -> NDArray[np.float16]:
        with self.device.on(self.device.looks):
            return np.asarray(seen.cpu().numpy())

    def _arrange(self, rows: Sequence[Row], sources: Sequence[int]) -> list[int]:
        """Assign a slot to each running row; a second row with the same past gets a copy of it."""
        claimed, where, kept = set[int](), list[int](), set(sources)
        free = (slot for slot in range(len(self.slots)) if slot not in kept)
        for row, source in zip(rows, sources, strict=True):
            slot = source
            if source in claimed:
                slot = next(free)
                self._copy(slot, source)
                self.slots[slot].fill(row)
            claimed.add(slot)
            where.append(slot)
        return where

    def _copy(self, target: int, source: int) -> None:
        same = self.slots[target].memory() is self.slots[source].memory()
        self.arena.copy(target, source, memory=not same)
        self.choices.copy(target, source)
        if self.looking and self.slots[source].attends:
            self.looking.copy(target, source)
        self.buffers.ids[target].copy_(self.buffers.ids[source])

    def _write_ids(self, where: Sequence[int], rows: Sequence[Row]) -> None:
        """Write the ids that the host has chosen."""
        ids = self.device.upload(np.array([row.ids[-1] for row in rows], np.int64))
        self.buffers.ids[self.device.upload(np.array(where, np.int64))] = ids

    def _join(self, rows: Sequence[Row], taken: Sequence[int]) -> list[int]:
        """Assign the lowest free slots and write encoder outputs into them."""
        used = set(taken)
        free = (slot for slot in range(len(self.slots)) if slot not in used)
        slots = [slot for slot, _ in zip(free, rows, strict=False)]
        for slot, row in zip(slots, rows, strict=True):
            self.slots[slot].fill(row)
            if row.memory is not None and self.arena.memory is not None:
                row.memory.arrive(self.device.steps)
                self.arena.memory[slot, :, :, : row.memory.length].copy_(row.memory.parts)
                self.arena.memory_length[slot] = row.memory.length
        return slots

    def _read(self, rows: Sequence[Row], slots: Sequence[int]) -> PendingStep:
        """Read the prompts of joining rows, those of similar length together, with a graph where there is
        one.
        """
        order = sorted(range(len(rows)), key=lambda i: len(rows[i].ids))
        for i in (i for i in order if rows[i].before):
            self._read_piece(rows[i], slots[i])
        order = [i for i in order if not rows[i].before]
        plain = [i for i in order if is_plain(rows[i])]
        while size := self._graph_for([len(rows[i].ids) for i in plain]):
            some, plain = plain[: size[0]], plain[size[0] :]
            self._read_by_graph([rows[i] for i in some], [slots[i] for i in some], self.joining[size])
        order = [i for i in order if i in plain or not is_plain(rows[i])]
        if self.device.gpu and len(order) <= FEW and all(self._is_piece(rows[i]) for i in order):
            for i in order:
                self._read_piece(rows[i], slots[i])
            order = []
        group: list[int] = []
        for i in order:
            if group and len(rows[i].ids) * (len(group) + 1) > READ_AT_ONCE:
                self._read_group([rows[k] for k in group], [slots[k] for k in group])
                group = []
            group.append(i)
        if group:
            self._read_group([rows[k] for k in group], [slots[k] for k in group])
        return self._to_host()

    def _graph_for(self, lengths: Sequence[int]) -> tuple[int, int] | None:
        """Return rows and length of the graph that reads the most of these prompts, shortest first."""
        fits = [(rows, -length) for rows, length in self.joining if rows <= len(lengths)]
        fits = [(rows, length) for rows, length in fits if lengths[rows - 1] <= -length]
        rows, length = max(fits, default=(0, 0))
        return (rows, -length) if rows else None

    def _read_by_graph(self, rows: Sequence[Row], slots: Sequence[int], joining: Joining) -> None:
        """Read as many rows as a graph takes."""
        given, length = np.zeros(joining.given.shape, np.int64), joining.length
        for column, row, slot in zip(given.T, rows, slots, strict=True):
            column[: len(row.ids)] = row.ids
            column[length:] = (slot, len(row.ids), len(row.before))[: len(column) - length]
        self._begin(rows, slots)
        joining.given.copy_(self.device.upload(given))
        joining.read()

    def _is_piece(self, row: Row) -> bool:
        """Tell whether the graph for a piece can read its prompt."""
        return row.table is None and len(row.ids) <= self.piece

    def _read_piece(self, row: Row, slot: int) -> None:
        """Read a piece of a prompt, with its graph where it fits."""
        start, count = len(row.before), len(row.ids)
        piece = self.pieces.get(row.choice is None or simple(row.choice))
        if piece is None or count > self.piece or start + self.piece > self.positions:
            self._read_group([row], [slot], self.device.upload(np.array([start], np.int64)))
            return
        self._read_by_graph([row], [slot], piece)

    def _read_group(self, rows: Sequence[Row], slots: Sequence[int], start: Tensor | None = None) -> None:
        """Read prompts without a graph. `start` is, for a single row, the number of ids read before."""
        device, (ids, whole) = self.device, numbered(rows, self.decoder.shape.vocabulary)
        table = None if whole is None else device.upload(whole).to(device.dtype)
        places = device.upload(np.array(slots, np.int64))
        lengths = device.upload(np.array([len(row.ids) for row in rows], np.int64))
        plain = self._begin(rows, slots)
        self._read_prompts(device.upload(ids), places, lengths, table, plain=plain, start=start)

    def _compact(self, rows: Sequence[Row]) -> list[int]:
        """Move rows into lower slots where that makes the next step smaller."""
        used = set(self.where)
        size = self._bucket(len(rows))
        holes = (slot for slot in range(size) if slot not in used)
        for i, slot in enumerate(self.where):
            if slot >= size:
                hole = next(holes)
                self._copy(hole, slot)
                self.slots[hole], self.slots[slot] = self.slots[slot], Slot()
                self.where[i] = hole
        return self.where

    def _bucket(self, rows: int) -> int:
        return next(size for size in self.buckets if size >= rows)

    def _launch(self, where: Sequence[int]) -> PendingStep:
        """Queue a step of these slots, and a piece of encoder work."""
        plain = all(self.slots[slot].plain for slot in where)
        self.buffers.graphs[self._bucket(max(where) + 1), plain]()
        return self._to_host()
