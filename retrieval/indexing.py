"""Index one file in one vector space: text to passages, vectors and chunks, or a picture to a vector, stored
under a build's name.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from conch.errors import ApiError
from conch.pictures import Picture

from .chunking import ChunkingStrategy, Span, chunks, halves, homes, passages
from .formats import NoText
from .library import Embedder, Item, Library

AT_ONCE = 64  # passages that are embedded together
PIECES = 64  # chunks that are written together
TRIES, PAUSE = 30, 1.0  # of a model that is busy, and seconds between them


async def embedded(
    text: str, spans: Iterable[Span], embedder: Embedder, most: int
) -> tuple[list[Span], list[int], NDArray[np.float32]]:
    """Return passages in order, with token counts and vectors [passages, dimensions]; one with more than
    `most` tokens is halved.
    """
    found: list[tuple[Span, int, NDArray[np.float32]]] = []
    waiting = list(spans)
    while waiting:
        part, waiting = waiting[:AT_ONCE], waiting[AT_ONCE:]
        vectors, counts = await _patiently(embedder, [span.of(text) for span in part])
        for span, count, vector in zip(part, counts, vectors, strict=True):
            if count > most and span.end - span.start > 1:
                waiting += halves(span, text)
            else:
                found.append((span, int(count), vector))
    found.sort(key=lambda one: one[0].start)
    values = np.array([vector for _, _, vector in found], np.float32)
    return [span for span, _, _ in found], [count for _, count, _ in found], values


async def _patiently(
    embedder: Embedder, items: Sequence[Item]
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Retry when the model is at capacity: clients' requests go first; finished vectors are kept."""
    for _ in range(TRIES):
        try:
            return await embedder.embed(items, cut=True)
        except ApiError as error:
            if error.status != 503:
                raise
            await asyncio.sleep(PAUSE)
    return await embedder.embed(items, cut=True)


async def index(
    library: Library, embedder: Embedder, place: str, build: str, text: str, strategy: ChunkingStrategy
) -> tuple[int, int]:
    """Write everything of a text's build, its vectors into the collection `place`, and return the number of
    vectors and the bytes of chunks. Repeating it gives the same result.
    """
    await library.vectors.create(place, embedder.dimensions)
    most = min(embedder.positions, strategy.max_tokens)
    packed = passages(text, strategy.passage(embedder.positions))
    spans, counts, values = await embedded(text, packed, embedder, most)
    parts = chunks(counts, strategy)
    texts = iter([text[spans[first].start : spans[last - 1].end].encode() for first, last in parts])
    number = size = 0
    while some := list(islice(texts, PIECES)):
        await library.documents.write(build, number, some)
        number, size = number + len(some), size + sum(map(len, some))
    await library.vectors.put(place, build, homes(parts, len(spans)), values)
    return len(spans), size


async def index_picture(library: Library, embedder: Embedder, place: str, build: str, data: bytes) -> int:
    """Write everything of a picture's build: one vector for the encoded file into the collection `place`, and
    no chunk, since its caption may change.

    Raises:
        NoText: it cannot be read.
    """
    await library.vectors.create(place, embedder.dimensions)
    try:
        values, _ = await _patiently(embedder, [Picture(data)])
    except ApiError as error:
        if error.status != 400:
            raise
        raise NoText(f"the file {error.message.removeprefix('input [0] ')}") from error
    await library.vectors.put(place, build, [0], values)
    return 1
