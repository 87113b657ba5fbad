"""The running batch of decoder-only models, on paged attention."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from ..runtime import Row, RunningBatch, Step
from .attention import SIZE
from .blocks import Blocks, Cached
from .rows import Biases, chosen
from .runtime import OpenVinoRuntime

KEPT_BYTES = 512 << 20  # caches may grow to so many for the sake of prompts that begin as earlier ones did


class PagedBatch(RunningBatch):
    """Rows that step together, each a sequence with its own blocks of the caches. One inference computes one
    id of each running text and pieces of the prompts of others.
    """

    def __init__(self, runtime: OpenVinoRuntime) -> None:
        self.runtime = runtime
        self.request = runtime.decoder.create_infer_request()
        self.biases = Biases(runtime.facts.vocabulary)
        self.names = [f"{c}{i}" for i in range(runtime.facts.layers) for c in "kv"]
        self.blocks = self._blocks()
        self.running: list[Cached] = []

    def _blocks(self) -> Blocks:
        ports = [self.runtime.decoder.input(name) for name in self.names]
        kinds = [
            (port.element_type, [size.get_max_length() for size in port.partial_shape]) for port in ports
        ]
        block = sum(kind.bitwidth * int(np.prod(shape[1:])) // 8 for kind, shape in kinds)
        return Blocks(
            kinds, KEPT_BYTES // block, lambda i, cache: self.request.set_tensor(self.names[i], cache)
        )

    def step(self, rows: Sequence[Row]) -> Step:
        """Advance exactly these rows, joining rows last: each with one new id, or with more of its prompt."""
        sequences = self._continued(rows)
        wanted = [row.ids if row.parent is not None else (*row.before, *row.ids) for row in rows]
        pieces = [self.blocks.match(one, ids) for one, ids in zip(sequences, wanted, strict=True)]
        for one, ids in zip(sequences, pieces, strict=True):  # what they match is not taken by others
            self.blocks.reserve(one, len(ids))
        ends = list(accumulate((len(ids) for ids in pieces), initial=0))
        past = [one.length for one in sequences]
        inputs: dict[str, Any] = {
            "positions": np.concatenate(
                [np.arange(start, start + len(ids)) for start, ids in zip(past, pieces, strict=True)]
            ),
            "last": np.array(ends[1:]) - 1,
            "bias": self.biases.of([row.bias for row in rows]),
            "past": np.array(past, np.int32),
            "begins": np.array(ends, np.int32),
            "blocks": np.array([block for one in sequences for block in one.blocks], np.int32),
            "block_begins": np.array(
                list(accumulate((len(one.blocks) for one in sequences), initial=0)), np.int32
            ),
            "longest": np.array(max(map(sum, zip(past, map(len, pieces), strict=True))), np.int32),
            **self._ids(rows, pieces),
        }
        self.request.infer(inputs)
        for one, ids in zip(sequences, pieces, strict=True):
            self.blocks.filled(one, ids)
        self.running = sequences
        return chosen(*(self.request.get_tensor(name).data for name in ("logits", "log_sum")))

    def known(self, prompt: Sequence[int]) -> int:
        """See RunningBatch: whole blocks."""
        return SIZE * len(self.blocks.found(b"", prompt))

    def _continued(self, rows: Sequence[Row]) -> list[Cached]:
        """Return the sequence of each row; those of the last step that no row continues end."""
        kept = [self.running[row.parent] for row in rows if row.parent is not None]
        there = set(map(id, kept))
        for one in self.running:
            if id(one) not in there:
                self.blocks.drop(one)
        if not kept:
            self.blocks.shrink()
        new = rows[len(kept) :]
        assert all(row.parent is None for row in new)
        return self.blocks.fork(kept) + [Cached(key=b"" if row.table is None else None) for row in new]

    def _ids(self, rows: Sequence[Row], pieces: Sequence[Sequence[int]]) -> dict[str, Any]:
        """Return the new ids and, for models that take one, the table that ids from the vocabulary's end on
        are rows of: those of all rows in turn.
        """
        ids = np.array([token for piece in pieces for token in piece], np.int64)
        if not (width := self.runtime.facts.prompt_width):
            return {"ids": ids}
        none = np.zeros((0, width), np.float32)
        tables = [none if row.table is None else row.table for row in rows]
        shift = np.repeat(
            list(accumulate(map(len, tables[:-1]), initial=0)), [len(piece) for piece in pieces]
        )
        table = np.concatenate([*tables, np.zeros((1, width), np.float32)])  # never empty
        return {"ids": np.where(ids >= self.runtime.facts.vocabulary, ids + shift, ids), "table": table}
