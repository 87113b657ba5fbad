"""Blocks of the caches of decoder-only models, and the sequences that share them.

A block that is full is known by its ids and all before them, also after its sequences have ended, until its
place is needed: a prompt that begins with the same ids is not read again (system prompts, conversations).
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import openvino as ov
from numpy.typing import NDArray

from .attention import SIZE
from .runtime import bits

FEW = 16  # blocks


@dataclass(eq=False)
class Cached:
    """Where the keys and values of a sequence are.

    Attributes:
        blocks: its blocks, in order
        length: positions that they hold
        key: of its full blocks; None if its ids do not tell what it has read
        rest: ids after its full blocks
    """

    blocks: list[int] = field(default_factory=list)
    length: int = 0
    key: bytes | None = b""
    rest: list[int] = field(default_factory=list)


class Blocks:
    """Caches that grow by need, in blocks. `kept` is how many blocks there may be for the sake of sequences
    that have ended.
    """

    def __init__(self, ports: Sequence[tuple[ov.Type, Sequence[int]]], kept: int) -> None:
        """`ports`: type and shape [blocks, ...] of each cache."""
        self.ports, self.kept = ports, kept
        self.caches = [ov.Tensor(kind, ov.Shape([0, *shape[1:]])) for kind, shape in ports]
        self.views: list[NDArray[Any]] = [bits(cache) for cache in self.caches]
        self.free: list[int] = []
        self.uses: list[int] = []  # sequences that use each block
        self.keys: dict[int, bytes] = {}
        self.known: OrderedDict[bytes, int] = OrderedDict()  # least recently used first
        self._grow(FEW)

    def fork(self, sequences: Sequence[Cached]) -> list[Cached]:
        """Return sequences that go on as these do, any of which may be there several times."""
        goes_on: set[int] = set()
        made, copies = [], list[tuple[int, int]]()
        for one in sequences:
            if id(one) not in goes_on:
                goes_on.add(id(one))
                made.append(one)
                continue
            full = one.length // SIZE
            for block in one.blocks[:full]:
                self.uses[block] += 1
            own = [self._take() for _ in one.blocks[full:]]
            copies += zip(own, one.blocks[full:], strict=True)
            made.append(Cached(one.blocks[:full] + own, one.length, one.key, list(one.rest)))
        if copies:
            to, origin = (list(column) for column in zip(*copies, strict=True))
            for view in self.views:
                view[to] = view[origin]
        return made

    def extend(self, sequence: Cached, ids: Sequence[int]) -> Sequence[int]:
        """Make room for a sequence's next ids. Returns those that are to be computed: at least the last."""
        found = self.found(sequence.key, ids) if not sequence.length % SIZE else []
        for key in found:
            self.known.move_to_end(key)
            self.uses[self.known[key]] += 1
            sequence.blocks.append(self.known[key])
            sequence.key = key
        sequence.length += SIZE * len(found)
        ids = ids[SIZE * len(found) :]
        wanted = -(-(sequence.length + len(ids)) // SIZE)
        sequence.blocks += [self._take() for _ in range(wanted - len(sequence.blocks))]
        return ids

    def found(self, key: bytes | None, ids: Sequence[int]) -> list[bytes]:
        """Return the keys of known blocks that ids after those of `key` fill, without the last id."""
        keys = list[bytes]()
        if key is None:
            return keys
        for at in range(0, len(ids) - SIZE, SIZE):
            key = _key(key, ids[at : at + SIZE])
            if key not in self.known:
                break
            keys.append(key)
        return keys

    def filled(self, sequence: Cached, ids: Sequence[int]) -> None:
        """Take note that ids have been computed. Full blocks are known from now on."""
        sequence.length += len(ids)
        if sequence.key is None:
            return
        sequence.rest += ids
        while len(sequence.rest) >= SIZE:
            sequence.key = _key(sequence.key, sequence.rest[:SIZE])
            del sequence.rest[:SIZE]
            block = sequence.blocks[(sequence.length - len(sequence.rest)) // SIZE - 1]
            if self.known.setdefault(sequence.key, block) == block:
                self.keys[block] = sequence.key

    def drop(self, sequence: Cached) -> None:
        """End a sequence. Its last blocks are forgotten first, which are of no use without the others."""
        for block in reversed(sequence.blocks):
            self.uses[block] -= 1
            if self.uses[block]:
                continue
            if block in self.keys:
                self.known.move_to_end(self.keys[block])
            else:
                self.free.append(block)

    def _take(self) -> int:
        """Return a block that no sequence uses."""
        if not self.free and len(self.uses) >= self.kept:
            self._forget()
        if not self.free:
            self._grow(max(FEW, len(self.uses) // 2))
        block = self.free.pop()
        self.uses[block] = 1
        for view in self.views:  # positions beyond the length count as zero times a value, which may be NaN
            view[block] = 0
        return block

    def _forget(self) -> None:
        """Free the block that was not used for the longest time, if there is one."""
        block = next((block for block in self.known.values() if not self.uses[block]), None)
        if block is not None:
            del self.known[self.keys.pop(block)]
            self.free.append(block)

    def _grow(self, more: int) -> None:
        had = len(self.uses)
        for i, (kind, shape) in enumerate(self.ports):
            larger = ov.Tensor(kind, ov.Shape([had + more, *shape[1:]]))
            bits(larger)[:had] = self.views[i]
            self.caches[i], self.views[i] = larger, bits(larger)
        self.free += reversed(range(had, had + more))
        self.uses += [0] * more


def _key(before: bytes, ids: Sequence[int]) -> bytes:
    return hashlib.blake2b(before + np.array(ids, np.int64).tobytes(), digest_size=16).digest()
