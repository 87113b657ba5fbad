"""Blocks of the caches of decoder-only models, and the sequences that share them.

A full block is known by its ids and all before them. It is kept when its sequences have ended, until its
place is needed, so a prompt that begins with the same ids is not read again.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Sequence
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
        tail: ids after its full blocks
    """

    blocks: list[int] = field(default_factory=list)
    length: int = 0
    key: bytes | None = b""
    tail: list[int] = field(default_factory=list)


class Blocks:
    """Caches that grow by need, in blocks. `most` is how many there may be for the sake of sequences that
    have ended; `set_cache` receives each new cache and its number.
    """

    def __init__(
        self,
        ports: Sequence[tuple[ov.Type, Sequence[int]]],
        most: int,
        set_cache: Callable[[int, ov.Tensor], None],
    ) -> None:
        """`ports`: type and shape [blocks, ...] of each cache."""
        self.ports, self.most, self.set_cache = ports, max(FEW, most), set_cache
        self.views: list[NDArray[Any]] = [
            bits(ov.Tensor(kind, ov.Shape([0, *shape[1:]]))) for kind, shape in ports
        ]
        self.free: list[int] = []
        self.uses: list[int] = []  # sequences that use each block
        self.by_key: OrderedDict[bytes, int] = OrderedDict()  # least recently used first
        self.key_of: dict[int, bytes] = {}
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
            made.append(Cached(one.blocks[:full] + own, one.length, one.key, list(one.tail)))
        if copies:
            to, origin = (list(column) for column in zip(*copies, strict=True))
            for view in self.views:
                view[to] = view[origin]
        return made

    def match(self, sequence: Cached, ids: Sequence[int]) -> Sequence[int]:
        """Add the known blocks that a sequence's next ids fill. Returns the ids that are to be computed: at
        least the last.
        """
        found = [] if sequence.length % SIZE else self.found(sequence.key, ids)
        for key in found:
            self.uses[self.by_key[key]] += 1
            sequence.blocks.append(self.by_key[key])
            sequence.key = key
        sequence.length += SIZE * len(found)
        return ids[SIZE * len(found) :]

    def found(self, key: bytes | None, ids: Sequence[int]) -> list[bytes]:
        """Return the keys of known blocks that ids after those of `key` fill, without the last id. They count
        as used now.
        """
        keys = list[bytes]()
        if key is None:
            return keys
        for at in range(0, len(ids) - SIZE, SIZE):
            key = _key(key, ids[at : at + SIZE])
            if key not in self.by_key:
                break
            keys.append(key)
        for key in reversed(keys):
            self.by_key.move_to_end(key)
        return keys

    def reserve(self, sequence: Cached, more: int) -> None:
        """Make room for so many more positions of a sequence."""
        wanted = -(-(sequence.length + more) // SIZE)
        sequence.blocks += [self._take() for _ in range(wanted - len(sequence.blocks))]

    def filled(self, sequence: Cached, ids: Sequence[int]) -> None:
        """Take note that ids have been computed. Full blocks are known from now on."""
        sequence.length += len(ids)
        if sequence.key is None:
            return
        sequence.tail += ids
        while len(sequence.tail) >= SIZE:
            sequence.key = _key(sequence.key, sequence.tail[:SIZE])
            del sequence.tail[:SIZE]
            block = sequence.blocks[(sequence.length - len(sequence.tail)) // SIZE - 1]
            if self.by_key.setdefault(sequence.key, block) == block:
                self.key_of[block] = sequence.key

    def drop(self, sequence: Cached) -> None:
        """End a sequence. Its last blocks are forgotten first, which are of no use without the others."""
        for block in reversed(sequence.blocks):
            self.uses[block] -= 1
            if self.uses[block]:
                continue
            if block in self.key_of:
                self.by_key.move_to_end(self.key_of[block])
            else:
                self.free.append(block)

    def shrink(self) -> None:
        """Give back what sequences needed beyond `most`, when all have ended."""
        if len(self.uses) > self.most:
            stay = list(self.by_key.items())[-self.most :]
            self._resize(self.most, [block for _, block in stay])
            self.by_key = OrderedDict((key, block) for block, (key, _) in enumerate(stay))
            self.key_of = {block: key for key, block in self.by_key.items()}
            self.free = list(range(len(stay), self.most))

    def _take(self) -> int:
        """Return a block that no sequence uses."""
        if not self.free and len(self.uses) >= self.most:
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
        block = next((block for block in self.by_key.values() if not self.uses[block]), None)
        if block is not None:
            del self.by_key[self.key_of.pop(block)]
            self.free.append(block)

    def _grow(self, more: int) -> None:
        had = len(self.uses)
        wanted = had + more if had >= self.most else min(had + more, self.most)
        self._resize(wanted, list(range(had)))
        self.free += reversed(range(had, wanted))

    def _resize(self, count: int, stay: list[int]) -> None:
        """Make new caches that begin with the blocks that stay, one after the other to save memory."""
        for i, (kind, shape) in enumerate(self.ports):
            cache = ov.Tensor(kind, ov.Shape([count, *shape[1:]]))
            view = bits(cache)
            np.take(self.views[i], stay, 0, view[: len(stay)], "clip")
            self.views[i] = view
            self.set_cache(i, cache)
        self.uses = self.uses[:count] + [0] * (count - len(self.uses))


def _key(before: bytes, ids: Sequence[int]) -> bytes:
    return hashlib.blake2b(before + np.array(ids, np.int64).tobytes(), digest_size=16).digest()
