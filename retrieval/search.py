"""Search: find the nearest passages and pictures of each space, keep those that records vouch for, and rank
the chunks they are in as one list.
"""

from __future__ import annotations

import asyncio
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from conch.errors import refused
from conch.pictures import Picture

from .calibration import Scales, measured
from .documents import Page, Record
from .kinds import is_picture
from .library import (
    ATTACHMENT,
    COMPLETED,
    IN_PROGRESS,
    PICTURES,
    Item,
    Library,
    attachment_id,
    caption,
    collection,
    model_of,
    visible,
)
from .vectors import Hit

K = TypeVar("K", bound=Hashable)
WIDEST = 4096  # passages that are looked at for one query
MOST_BUILDS = 8192  # of one expression; above, what passes the filter is picked out of the hits
Key = tuple[str, int]  # attachment, chunk


class Filter(Protocol):
    """A search's condition on files' attributes."""

    def accepts(self, attributes: Mapping[str, Any]) -> bool:
        """Tell whether a file with these attributes may be found."""


@dataclass(frozen=True)
class Result:
    """A chunk of a file, or a picture with its caption (empty if it has none).

    Attributes:
        score: the cosine of its best passage, or its reciprocal rank, from 0 to 1
        cosines: the best one by model
    """

    attachment: Record
    text: str
    score: float
    cosines: Mapping[str, float]


@dataclass(frozen=True)
class StoreSearch:
    """What to search for, among which files, how many results, from which score on. With `cut`, texts that
    are too long for their model are truncated instead of refused.
    """

    queries: Sequence[Item]
    chosen: Filter | None = None
    limit: int = 10
    threshold: float = 0.0
    cut: bool = False


@dataclass(frozen=True)
class SpaceQuery:
    """A space to search, with either the pictures or the texts among the queries."""

    space: str
    pictures: bool


@dataclass
class SpaceRanking:
    """Results of a `SpaceQuery`: the best cosine of each chunk, best first; their records and positions."""

    cosines: dict[Key, float]
    records: dict[str, Record]
    places: dict[Key, tuple[str, int]]


def together(lists: Sequence[Mapping[K, float]]) -> dict[K, float]:
    """Average calibrated scores of models that compare the same things, best first; what a list has not found
    has 0 there.
    """
    scores: dict[K, float] = {}
    for key, score in (pair for one in lists for pair in one.items()):
        scores[key] = scores.get(key, 0.0) + score / len(lists)
    return dict(sorted(scores.items(), key=lambda pair: -pair[1]))


def interleaved(lists: Sequence[Mapping[K, float]]) -> dict[K, float]:
    """Take the best score of each, best first, with ties in the order of lists. A picture with a caption is
    in the list of texts and in that of pictures.
    """
    best: dict[K, tuple[float, int]] = {}
    for number, scores in enumerate(lists):
        for key, score in scores.items():
            best[key] = min(best.get(key, (0.0, 0)), (-score, number))
    return {key: -score for key, (score, _) in sorted(best.items(), key=lambda pair: pair[1])}


def asks(library: Library, spaces: Sequence[str], queries: Sequence[Item]) -> list[SpaceQuery]:
    """Return which spaces to search. Texts are compared with texts by text-only models, if the store has any,
    and with pictures by models that read both; pictures are compared with both. A query's own kind comes
    first.

    Raises:
        ApiError: 400 for a picture where no model of the store reads any.
    """
    sees = {space: library.embedders[model_of(space)].pictures for space in spaces}
    found = []
    if not all(isinstance(query, Picture) for query in queries):
        alone = [space for space in spaces if not sees[space]]
        of_texts = alone or [space for space in spaces if not space.endswith(PICTURES)]
        found += [SpaceQuery(space, pictures=False) for space in of_texts]
        found += [SpaceQuery(space, pictures=False) for space in spaces if space.endswith(PICTURES)]
    if any(isinstance(query, Picture) for query in queries):
        if not any(sees.values()):
            raise refused(
                "query", "has a picture, and no model of this vector store reads pictures; send text"
            )
        seen = sorted((space for space in spaces if sees[space]), key=lambda one: not one.endswith(PICTURES))
        found += [SpaceQuery(space, pictures=True) for space in seen]
    return found


async def search(library: Library, store: Record, request: StoreSearch) -> list[Result]:
    """Return the best chunks and pictures of a store. With several queries each result has its best cosine.
    Where several spaces have results, scores are calibrated. `threshold` applies to the returned score.

    Raises:
        ApiError: 400 for a query that its model does not take.
    """
    picked = await _picked(library, store, request.chosen) if request.chosen else None
    if picked is not None and not picked:
        return []
    return await SearchRun(library, store, request, picked).results()


async def _picked(library: Library, store: Record, chosen: Filter) -> dict[str, Record]:
    """Return visible builds of the files whose attributes a filter accepts."""
    pages = library.every(Page(ATTACHMENT, {"parent": store.id}, [COMPLETED, IN_PROGRESS]))
    return {
        build: record
        async for record in pages
        if chosen.accepts(record.body["attributes"])
        for build in visible(record)
    }


@dataclass(frozen=True)
class SearchRun:
    """One search; `picked` are the only builds that it may find, if not None."""

    library: Library
    store: Record
    request: StoreSearch
    picked: dict[str, Record] | None

    async def results(self) -> list[Result]:
        """See `search`."""
        asked = asks(self.library, self.store.body["spaces"], self.request.queries)
        values = await self._embedded(asked)
        answers = await asyncio.gather(
            *(self._ranked(one, values[model_of(one.space), one.pictures]) for one in asked)
        )
        rankings = dict(zip(asked, answers, strict=True))
        records = {name: record for ranking in answers for name, record in ranking.records.items()}
        scores = (await self._scores(rankings)).items()
        top = [(key, score) for key, score in scores if score >= self.request.threshold][: self.request.limit]
        texts = await self._texts(rankings, records, [key for key, _ in top])
        return [
            Result(records[key[0]], texts[key], score, _cosines(rankings, key))
            for key, score in top
            if key in texts
        ]

    async def _embedded(self, asked: Sequence[SpaceQuery]) -> dict[tuple[str, bool], NDArray[np.float32]]:
        """Return the queries' vectors by model and whether they are pictures. A text that is compared only
        with pictures is truncated to what the model reads.
        """
        names = list(dict.fromkeys((model_of(one.space), one.pictures) for one in asked))

        async def embed(model: str, pictures: bool) -> NDArray[np.float32]:
            items = [query for query in self.request.queries if isinstance(query, Picture) == pictures]
            whole = any(one.space == model and not one.pictures for one in asked)
            vectors, _ = await self.library.embedders[model].embed(items, cut=self.request.cut or not whole)
            return vectors

        return dict(zip(names, await asyncio.gather(*(embed(*name) for name in names)), strict=True))

    async def _ranked(self, ask: SpaceQuery, values: NDArray[np.float32]) -> SpaceRanking:
        place = collection(self.store.id, ask.space)
        found = await asyncio.gather(*(self._nearest(place, value) for value in values))
        ranking = SpaceRanking({}, {}, {})
        for hit, record in (pair for row in found for pair in row):
            key = (record.id, 0 if is_picture(record.body) else hit.chunk)
            ranking.records[record.id] = record
            ranking.places.setdefault(key, (hit.build, hit.chunk))
            ranking.cosines[key] = max(ranking.cosines.get(key, -1.0), hit.score)
        ranking.cosines = dict(sorted(ranking.cosines.items(), key=lambda pair: -pair[1]))
        return ranking

    async def _scores(self, rankings: Mapping[SpaceQuery, SpaceRanking]) -> dict[Key, float]:
        """Rank, best first: by cosine where one space has results, otherwise by calibrated score: the mean of
        models that compare the same things, the best of different things.
        """
        having = {one: ranking.cosines for one, ranking in rankings.items() if ranking.cosines}
        if len(having) == 1:
            (cosines,) = having.values()
            return {key: min(1.0, max(0.0, cosine)) for key, cosine in cosines.items()}
        lists: dict[tuple[bool, bool], list[dict[Key, float]]] = {}
        for one, cosines in having.items():
            drawn = one.space.endswith(PICTURES)
            scale = (await self._scales(model_of(one.space))).of(query=one.pictures, found=drawn)
            scores = {key: scale.score(cosine) for key, cosine in cosines.items()}
            lists.setdefault((one.pictures, drawn), []).append(scores)
        return interleaved([together(group) for group in lists.values()])

    async def _scales(self, model: str) -> Scales:
        scales = self.library.scales
        if model not in scales:
            scales[model] = await measured(self.library.embedders[model])
        found: Scales = scales[model]
        return found

    async def _texts(
        self,
        rankings: Mapping[SpaceQuery, SpaceRanking],
        records: Mapping[str, Record],
        keys: Sequence[Key],
    ) -> dict[Key, str]:
        """Return current captions of pictures, and chunks of texts that still exist."""
        texts = {key: caption(records[key[0]]) for key in keys if is_picture(records[key[0]].body)}
        places = {key: place for ranking in rankings.values() for key, place in ranking.places.items()}
        wanted = {places[key]: key for key in keys if key not in texts}
        pieces = await self.library.documents.pieces(list(wanted))
        return texts | {wanted[place]: piece.decode() for place, piece in pieces.items()}

    async def _nearest(self, place: str, query: NDArray[np.float32]) -> list[tuple[Hit, Record]]:
        """Return passages of at least `limit` chunks, if there are so many, asking for more until there
        are.
        """
        picked, width = self.picked, 4 * self.request.limit
        only = list(picked) if picked is not None and len(picked) <= MOST_BUILDS else None
        asked_again = False
        while True:
            hits = await self.library.vectors.search(place, query, width, only)
            owners, replaced = (picked, False) if picked is not None else await self._owners(hits)
            if replaced and not asked_again:
                asked_again = True  # perhaps after these hits were found: the new build was not among them
                continue
            sure = [(hit, owners[hit.build]) for hit in hits if hit.build in owners]
            enough = len({(record.id, hit.chunk) for hit, record in sure}) >= self.request.limit
            if enough or len(hits) < width or width >= WIDEST:
                return sure
            width = min(WIDEST, 4 * width)

    async def _owners(self, hits: Sequence[Hit]) -> tuple[dict[str, Record], bool]:
        """Return builds that records vouch for, and whether some hits belong to builds that were replaced."""
        names = {hit.build.partition(":")[0] for hit in hits}
        ids = {attachment_id(self.store.id, name) for name in names}
        records = await self.library.documents.get(ATTACHMENT, ids)
        owners = {build: record for record in records.values() for build in visible(record)}
        renewed = {record.link for record in owners.values()}
        replaced = any(hit.build not in owners and hit.build.partition(":")[0] in renewed for hit in hits)
        return owners, replaced


def _cosines(rankings: Mapping[SpaceQuery, SpaceRanking], key: Key) -> dict[str, float]:
    best: dict[str, float] = {}
    for one, ranking in rankings.items():
        if key in ranking.cosines:
            model = model_of(one.space)
            best[model] = max(best.get(model, -1.0), ranking.cosines[key])
    return best
