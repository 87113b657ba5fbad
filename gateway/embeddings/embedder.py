"""Inputs to vectors: requests of some inputs each to the model's instances, and their answers in order."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conch.deployment import Pool
from conch.names import EMBEDDER

from ..triton import Triton
from .schema import Item, too_long

INPUTS = 64  # of one request to an instance (max_batch_size of the family)
TOKENS = 32_768  # of ids that one such request carries, padding included
AT_ONCE = 4  # requests of one client's request for each instance
OUTPUTS = ["embedding", "input_length"]


@dataclass(frozen=True)
class Vectors:
    """Float32 [inputs, dimensions], the tokens that were read, and (int64 [inputs]) those that each has."""

    values: NDArray[np.float32]
    tokens: int
    lengths: NDArray[np.int64]


def parts(items: Sequence[Item]) -> Iterator[list[int]]:
    """Inputs by their number, so parted that a part has about as long ones, of one kind."""
    part: list[int] = []
    for number in sorted(range(len(items)), key=lambda n: (isinstance(items[n], str), len(items[n]))):
        other = bool(part) and isinstance(items[part[0]], str) != isinstance(items[number], str)
        ids = 0 if isinstance(items[number], str) else (len(part) + 1) * len(items[number])
        if part and (other or len(part) == INPUTS or ids > TOKENS):
            yield part
            part = []
        part.append(number)
    if part:
        yield part


def tensors(items: Sequence[Item]) -> dict[str, NDArray[Any]]:
    """The request for inputs of one kind. What is too long is cut there and refused here, where its number in
    the whole request is known.
    """
    cut = {"truncate": np.ones((len(items), 1), bool)}
    if isinstance(items[0], str):
        texts = [item.encode() for item in items if isinstance(item, str)]
        return {"text": np.array(texts, object)[:, None], **cut}
    lengths = np.array([[len(item)] for item in items], np.int32)
    ids = np.zeros((len(items), lengths.max()), np.int32)
    for row, item in zip(ids, items, strict=True):
        row[: len(item)] = np.array(item)
    return {"input_ids": ids, "input_lengths": lengths, **cut}


async def embed(
    triton: Triton, pool: Pool, items: Sequence[Item], request_id: str, *, truncate: bool
) -> Vectors:
    """The vectors of all inputs.

    Raises:
        ApiError: the first failure; 400 for an input that is too long, unless it may be cut.
    """
    values = np.empty((len(items), pool.dimensions), np.float32)
    lengths = np.empty(len(items), np.int64)
    places = asyncio.Semaphore(AT_ONCE * len(pool.instances))

    async def run(n: int, numbers: list[int]) -> None:
        async with places:
            arrays = tensors([items[number] for number in numbers])
            found = await triton.infer(pool, EMBEDDER, arrays, OUTPUTS, f"{request_id}.{n}")
            values[numbers], lengths[numbers] = found["embedding"], found["input_length"][:, 0]

    try:
        async with asyncio.TaskGroup() as group:
            for n, numbers in enumerate(parts(items)):
                group.create_task(run(n, numbers))
    except ExceptionGroup as failed:  # not except*: Python 3.11.2 wraps what that raises in a group again
        raise failed.exceptions[0] from None
    if not truncate and lengths.max() > pool.positions:
        number = int(np.flatnonzero(lengths > pool.positions)[0])
        raise too_long(number, int(lengths[number]), pool)
    return Vectors(values, int(np.minimum(lengths, pool.positions).sum()), lengths)
