"""Embed inputs: split them into requests to the model's instances, and join the answers in order."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conch.deployment import Pool
from conch.errors import ApiError, refused
from conch.names import EMBEDDERS, PICTURE_EMBEDDERS
from conch.pictures import Picture
from conch.tasks import results_of

from ..triton import Triton
from .schema import Item, too_long

INPUTS = 64  # of one request to an instance (max_batch_size of the family)
TOKENS = 32_768  # of ids that one such request carries, padding included
AT_ONCE = 4  # requests of one client's request for each instance
PICTURES = 8  # take one place of Admission, as INPUTS texts do
OUTPUTS = ["embedding", "input_length"]


@dataclass(frozen=True)
class EmbeddingRows:
    """Float32 [inputs, dimensions], the number of tokens read, and int64 [inputs], each input's tokens: 0 for
    a picture.
    """

    values: NDArray[np.float32]
    tokens: int
    lengths: NDArray[np.int64]


def parts(items: Sequence[Item]) -> Iterator[list[int]]:
    """Group inputs, by number, into parts of one kind and about equal length; each picture is a part of its
    own.
    """
    part: list[int] = []
    for number in sorted(range(len(items)), key=lambda n: (str(type(items[n])), len(items[n]))):
        item = items[number]
        other = bool(part) and type(items[part[0]]) is not type(item)
        ids = (len(part) + 1) * len(item) if isinstance(item, list) else 0
        if part and (other or len(part) == INPUTS or ids > TOKENS or isinstance(item, Picture)):
            yield part
            part = []
        part.append(number)
    if part:
        yield part


def places(items: Sequence[Item], pool: Pool) -> int:
    """Return how many of the gateway's places inputs take: what is sent at once."""
    pictures = sum(isinstance(item, Picture) for item in items)
    parts = ceil((len(items) - pictures) / INPUTS) + ceil(pictures / PICTURES)
    return min(parts, AT_ONCE * len(pool.instances))


def tensors(items: Sequence[Item]) -> dict[str, NDArray[Any]]:
    """Make the request for texts, or for token ids. What is too long is cut there and refused here, where its
    number in the whole request is known.
    """
    cut = {"truncate": np.ones((len(items), 1), bool)}
    texts = [item.encode() for item in items if isinstance(item, str)]
    if texts:
        return {"text": np.array(texts, object)[:, None], **cut}
    rows = [item for item in items if isinstance(item, list)]
    lengths = np.array([[len(row)] for row in rows], np.int32)
    ids = np.zeros((len(rows), lengths.max()), np.int32)
    for to, row in zip(ids, rows, strict=True):
        to[: len(row)] = np.array(row)
    return {"input_ids": ids, "input_lengths": lengths, **cut}


async def _picture(
    triton: Triton, pool: Pool, picture: Picture, number: int, request_id: str
) -> NDArray[np.float32]:
    try:
        data = await asyncio.to_thread(lambda: picture.data)
    except ValueError as error:
        raise refused("input", f"[{number}]: {error}; send it again") from error
    if not data:
        raise refused("input", f"[{number}] is empty; send a picture")
    arrays = {"image_bytes": np.frombuffer(data, np.uint8)[None]}
    try:
        found = await triton.infer(pool, PICTURE_EMBEDDERS[pool.family], arrays, OUTPUTS[:1], request_id)
    except ApiError as error:
        if error.status != 400:
            raise
        raise refused("input", f"[{number}] {error.message.removeprefix('image 0 ')}") from error
    return found["embedding"]


async def embed(
    triton: Triton, pool: Pool, items: Sequence[Item], request_id: str, *, truncate: bool
) -> EmbeddingRows:
    """Return the vectors of all inputs.

    Raises:
        ApiError: the first failure; 400 for an input that is too long, unless it may be cut, and for a
            picture that cannot be read.
    """
    values = np.empty((len(items), pool.dimensions), np.float32)
    lengths = np.zeros(len(items), np.int64)
    at_once = asyncio.Semaphore(AT_ONCE * len(pool.instances))

    async def run(n: int, numbers: list[int]) -> None:
        name = f"{request_id}.{n}"
        async with at_once:
            if isinstance(first := items[numbers[0]], Picture):
                values[numbers] = await _picture(triton, pool, first, numbers[0], name)
                return
            arrays = tensors([items[number] for number in numbers])
            found = await triton.infer(pool, EMBEDDERS[pool.family], arrays, OUTPUTS, name)
            values[numbers], lengths[numbers] = found["embedding"], found["input_length"][:, 0]

    await results_of(run(n, numbers) for n, numbers in enumerate(parts(items)))
    if not truncate and lengths.max() > pool.positions:
        number = int(np.flatnonzero(lengths > pool.positions)[0])
        raise too_long(number, int(lengths[number]), pool)
    return EmbeddingRows(values, int(np.minimum(lengths, pool.positions).sum()), lengths)
