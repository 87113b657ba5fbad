"""Queries to chunks: the nearest passages of each space, those that records vouch for, the chunks they
stand in.
"""

from __future__ import annotations

import asyncio
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from .documents import Page, Record
from .filters import Filter
from .library import ATTACHMENT, COMPLETED, IN_PROGRESS, Library, collection, every, visible
from .vectors import Hit

K = TypeVar("K", bound=Hashable)
CONSTANT = 60  # of reciprocal rank fusion (Cormack, Clarke and Büttcher, 2009)
WIDEST = 4096  # passages that are looked at for one query
MOST_BUILDS = 8192  # of one expression; above, what passes the filter is picked out of the hits


@dataclass(frozen=True)
class Result:
    """A chunk of a file, and the cosine of its best passage (several spaces: the reciprocal rank, 1 at
    most).
    """

    attachment: Record
    chunk: int
    text: str
    score: float


Key = tuple[str, int]  # attachment, chunk


def fused(rankings: Sequence[Sequence[K]]) -> dict[K, float]:
    """Reciprocal ranks of all rankings, scaled so that what is first in each of them has 1; best first."""
    scores: dict[K, float] = {}
    for ranking in rankings:
        for rank, key in enumerate(ranking, 1):
            scores[key] = scores.get(key, 0) + (CONSTANT + 1) / (CONSTANT + rank) / len(rankings)
    return dict(sorted(scores.items(), key=lambda pair: -pair[1]))


async def search(
    library: Library,
    store: Record,
    queries: Sequence[str],
    chosen: Filter | None,
    limit: int,
    threshold: float,
) -> list[Result]:
    """The best chunks of a store. Several queries of one space: a chunk has its best cosine; several spaces:
    reciprocal ranks. `threshold` applies to the score that is shown.
    """
    picked = await _picked(library, store, chosen) if chosen else None
    if picked is not None and not picked:
        return []
    ranked: list[dict[Key, float]] = []
    records: dict[str, Record] = {}
    chunks: dict[Key, tuple[str, int]] = {}
    for model in store.body["models"]:
        values, _ = await library.embedders[model].embed(list(queries), cut=False)
        place = collection(store.id, model)
        found = await asyncio.gather(
            *(_nearest(library, place, store, value, limit, picked) for value in values)
        )
        best: dict[Key, float] = {}
        for hit, record in (pair for row in found for pair in row):
            key = (record.id, hit.chunk)
            records[record.id] = record
            chunks.setdefault(key, (hit.build, hit.chunk))
            best[key] = max(best.get(key, -1.0), hit.score)
        ranked.append(dict(sorted(best.items(), key=lambda pair: -pair[1])))
    scores = ranked[0] if len(ranked) == 1 else fused([list(one) for one in ranked])
    kept = [(key, min(1.0, max(0.0, score))) for key, score in scores.items()]
    top = [(key, score) for key, score in kept if score >= threshold][:limit]
    texts = await library.documents.pieces([chunks[key] for key, _ in top])
    return [
        Result(records[key[0]], key[1], texts[chunks[key]].decode(), score)
        for key, score in top
        if chunks[key] in texts
    ]


async def _picked(library: Library, store: Record, chosen: Filter) -> dict[str, Record]:
    """Visible builds of the files whose attributes a filter accepts."""
    pages = every(library, Page(ATTACHMENT, {"parent": store.id}, [COMPLETED, IN_PROGRESS]))
    return {
        build: record
        async for record in pages
        if chosen.accepts(record.body["attributes"])
        for build in visible(record)
    }


async def _nearest(
    library: Library,
    place: str,
    store: Record,
    query: NDArray[np.float32],
    limit: int,
    picked: dict[str, Record] | None,
) -> list[tuple[Hit, Record]]:
    """Passages of at least `limit` chunks, if there are so many: asked for more until they are."""
    width = 4 * limit
    only = list(picked) if picked is not None and len(picked) <= MOST_BUILDS else None
    asked_again = False
    while True:
        hits = await library.vectors.search(place, query, width, only)
        owners, replaced = (picked, False) if picked is not None else await _owners(library, store, hits)
        if (
            replaced and not asked_again
        ):  # perhaps after these hits were found: the new build was not among them
            asked_again = True
            continue
        sure = [(hit, owners[hit.build]) for hit in hits if hit.build in owners]
        enough = len({(record.id, hit.chunk) for hit, record in sure}) >= limit
        if enough or len(hits) < width or width >= WIDEST:
            return sure
        width = min(WIDEST, 4 * width)


async def _owners(library: Library, store: Record, hits: Sequence[Hit]) -> tuple[dict[str, Record], bool]:
    """Builds that records vouch for; whether there are hits of builds that others have replaced."""
    names = {hit.build.partition(":")[0] for hit in hits}
    records = await library.documents.get(ATTACHMENT, [f"{store.id}/{name}" for name in names])
    owners = {build: record for record in records.values() for build in visible(record)}
    renewed = {record.link for record in owners.values()}
    replaced = any(
        name not in owners and name.partition(":")[0] in renewed for name in {hit.build for hit in hits}
    )
    return owners, replaced
