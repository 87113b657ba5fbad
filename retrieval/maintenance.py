"""Maintenance for operators: compare both databases, embed a store again, copy SQLite. Called by
`scripts/retrieval`.
"""

from __future__ import annotations

import asyncio
import random
import sqlite3
import time
from collections.abc import AsyncIterator
from contextlib import closing
from dataclasses import replace
from itertools import islice
from pathlib import Path

import structlog

from conch.errors import ApiError

from .documents import Page, Record
from .library import (
    ATTACHMENT,
    COMPLETED,
    IN_PROGRESS,
    LIVE,
    STORE,
    Library,
    all_builds,
    attachment_id,
    collection,
    wanted,
    with_body,
)

log = structlog.get_logger()
POLL = 0.2
SWEEP = 600.0  # seconds between two sweeps of a gateway, more or less
RECORDS = 500  # that are read together


async def check(library: Library, *, repair: bool) -> tuple[int, int]:
    """Compare records with the vector database: report builds that have lost vectors (after one database was
    restored from a backup), and builds that no record names. With `repair`, gateways make the former again,
    and the latter are removed.
    """
    lost = nameless = 0
    async for store in library.every(Page(STORE, {}, [LIVE])):
        async for record in library.every(Page(ATTACHMENT, {"parent": store.id})):
            if record.status == COMPLETED and (bad := await _incomplete(library, record)):
                lost += len(bad)
                if repair:
                    await library.change(ATTACHMENT, record.id, lambda there, bad=bad: _again(there, bad))  # type: ignore[misc]
        async for place, build in strangers(library, store):
            nameless += 1
            if repair:
                await library.vectors.remove(place, build)
    return lost, nameless


async def strangers(library: Library, store: Record) -> AsyncIterator[tuple[str, str]]:
    """Return collection and name of a store's builds that no record names: a write arrived after what it
    belongs to was removed. A build is recorded before anything is written under its name, and never again
    once its record has dropped it, so it stays unreferenced.
    """
    for space in {*store.body["spaces"], *store.body["next"]}:
        place = collection(store.id, space)
        builds = iter(sorted(await library.vectors.builds(place)))
        while some := list(islice(builds, RECORDS)):
            names = {attachment_id(store.id, build.partition(":")[0]) for build in some}
            records = await library.documents.get(ATTACHMENT, names)
            named = {build for record in records.values() for _, build in all_builds(record)}
            for build in some:
                if build not in named:
                    yield place, build


async def sweep(library: Library) -> int:
    """Remove unreferenced builds of all stores and return their number. A store whose vectors cannot be read
    does not block the others.
    """
    removed = 0
    async for store in library.every(Page(STORE, {}, [LIVE])):
        try:
            async for place, build in strangers(library, store):
                await library.vectors.remove(place, build)
                removed += 1
        except ApiError as error:
            log.warning("vectors of a store were not swept", store=store.id, reason=str(error))
    return removed


async def sweeping(library: Library) -> None:
    """Run `sweep` periodically until cancelled. What failed is tried next time."""
    while True:
        await asyncio.sleep(SWEEP * random.uniform(0.5, 1.5))
        try:
            if removed := await sweep(library):
                log.warning("vectors that came late were removed", builds=removed)
        except Exception:
            log.exception("vectors were not swept")


async def _incomplete(library: Library, record: Record) -> list[str]:
    """Return spaces whose vectors are incomplete."""
    builds, counts = record.body["builds"], record.body["counts"]
    return [
        space
        for space, build in builds.items()
        if await library.vectors.count(collection(record.parent, space), build) != counts.get(space)
    ]


def _again(record: Record, bad: list[str]) -> Record | None:
    if record.status != COMPLETED:
        return None
    builds = {space: build for space, build in record.body["builds"].items() if space not in bad}
    lost = [[space, build] for space, build in record.body["builds"].items() if space in bad]
    changed = with_body(record, builds=builds, waste=[*record.body["waste"], *lost], lease="")
    return replace(changed, status=IN_PROGRESS, due=time.time())


async def reembed(library: Library, name: str, models: list[str]) -> int:
    """Embed a store with other models while it is searched with the old ones, and return its number of files.
    The gateways do the work. If interrupted, call it again to continue.

    Raises:
        ApiError: 404 for the store, 400 for a model that is not served.
    """
    for model in models:
        if model not in library.embedders:
            raise ApiError(400, f"model {model!r} is not served here; start the stack with it", param="model")
    await library.store_of(name)
    following = library.spaces(models)
    await library.change(STORE, name, lambda store: with_body(store, next=following))
    total = 0
    async for record in library.every(Page(ATTACHMENT, {"parent": name}, [COMPLETED])):
        await library.change(ATTACHMENT, record.id, _due)
    async for record in library.every(Page(ATTACHMENT, {"parent": name}, [COMPLETED, IN_PROGRESS])):
        await _has(library, record, following)
        total += 1
    await library.change(STORE, name, lambda store: with_body(store, spaces=following, next=[]))
    async for record in library.every(Page(ATTACHMENT, {"parent": name}, [COMPLETED])):
        await library.change(ATTACHMENT, record.id, _due)  # the old builds go
    return total


def _due(record: Record) -> Record | None:
    return replace(record, due=record.due or time.time()) if record.status == COMPLETED else None


async def _has(library: Library, record: Record, following: list[str]) -> None:
    """Wait until a file has its builds in all these spaces, or has failed, or is gone."""
    while True:
        there = (await library.documents.get(ATTACHMENT, [record.id])).get(record.id)
        if there is None or there.status not in (COMPLETED, IN_PROGRESS):
            return
        if set(wanted(there, following)) <= set(there.body["builds"]):
            return
        await asyncio.sleep(POLL)


def copy_sqlite(source: Path, target: Path) -> None:
    """Make a consistent copy during writes (SQLite's backup API); the target appears complete.

    Raises:
        FileNotFoundError: there is no source.
    """
    if not source.is_file():
        raise FileNotFoundError(f"{source} is not there")
    part = target.with_name(target.name + ".part")
    part.unlink(missing_ok=True)
    with (
        closing(sqlite3.connect(f"file:{source}?mode=ro", uri=True)) as old,
        closing(sqlite3.connect(part)) as new,
    ):
        old.backup(new)
    part.replace(target)
