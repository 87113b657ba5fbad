"""Records in MongoDB, through PyMongo's asynchronous client. No transactions: a single server suffices."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from dataclasses import replace
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from bson.binary import Binary
from pymongo import ASCENDING, DESCENDING, AsyncMongoClient, UpdateOne
from pymongo.errors import DuplicateKeyError, PyMongoError
from pymongo.write_concern import WriteConcern

from . import COLUMNS, Documents, DocumentsDown, Page, Record

P = ParamSpec("P")
T = TypeVar("T")
SECONDS = 10
DATABASE = "conch"
INDICES = (["kind", "parent", "order"], ["kind", "link"], ["kind", "batch", "order"], ["due"])


_asked: set[asyncio.Task[Any]] = set()  # an event loop alone would let them go


def _answered(asked: asyncio.Task[Any]) -> None:
    """Retrieve a call's exception, so that none is left unread."""
    _asked.discard(asked)
    if not asked.cancelled():
        asked.exception()


def _named(call: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, Coroutine[Any, Any, T]]:
    """Turn every failure of the driver into DocumentsDown. A cancelled call runs on until it ends or times
    out: if it is cancelled while it waits for a server, PyMongo 4.20 releases a lock that another call holds,
    and then no call of that client is ever answered (before CPython 3.12).
    """

    @wraps(call)
    async def run(*args: P.args, **kwargs: P.kwargs) -> T:
        asked = asyncio.create_task(call(*args, **kwargs))
        _asked.add(asked)
        asked.add_done_callback(_answered)
        try:
            return await asyncio.shield(asked)
        except PyMongoError as error:
            raise DocumentsDown("MongoDB", error) from error

    return run


def _record(found: Mapping[str, Any]) -> Record:
    return Record(**{name: found[name] for name in COLUMNS}, body=json.loads(found["body"]))


def _document(record: Record) -> dict[str, Any]:
    """Make a document. The body is never queried: as JSON it may have any key and any number."""
    return {**{name: getattr(record, name) for name in COLUMNS}, "body": json.dumps(dict(record.body))}


def _key(record: Record) -> str:
    return f"{record.kind}/{record.id}"


class MongoDocuments(Documents):
    """Two collections: `records` under kind/id, `pieces` under owner and number. Writes are journaled before
    they are acknowledged.
    """

    def __init__(self, url: str, password: str = "") -> None:
        given: Any = {"password": password} if password else {}
        self.client: AsyncMongoClient[dict[str, Any]] = AsyncMongoClient(
            url, serverSelectionTimeoutMS=SECONDS * 1000, timeoutMS=SECONDS * 1000, **given
        )
        concern = WriteConcern(w="majority", j=True)
        base = self.client.get_default_database(DATABASE)
        self.records = base.get_collection("records", write_concern=concern)
        self.stored = base.get_collection("pieces", write_concern=concern)
        self.indexed = False

    async def _index(self) -> None:
        if not self.indexed:
            for names in INDICES:
                await self.records.create_index([(name, ASCENDING) for name in names])
            self.indexed = True

    @_named
    async def insert(self, record: Record) -> bool:
        await self._index()
        try:
            await self.records.insert_one({"_id": _key(record), **_document(record)})
        except DuplicateKeyError:
            return False
        return True

    @_named
    async def get(self, kind: str, ids: Collection[str]) -> dict[str, Record]:
        keys = [f"{kind}/{one}" for one in ids]
        return {found["id"]: _record(found) async for found in self.records.find({"_id": {"$in": keys}})}

    @_named
    async def update(self, record: Record) -> Record | None:
        written = replace(record, version=record.version + 1)
        same = {"_id": _key(record), "version": record.version}
        result = await self.records.replace_one(same, _document(written))
        return written if result.matched_count else None

    @_named
    async def remove(self, record: Record) -> bool:
        result = await self.records.delete_one({"_id": _key(record), "version": record.version})
        return result.deleted_count == 1

    @_named
    async def page(self, page: Page) -> list[Record]:
        query: dict[str, Any] = {"kind": page.kind, **page.where}
        if page.statuses:
            query["status"] = {"$in": list(page.statuses)}
        bounds = {
            "$lt" if page.descending else "$gt": page.after,
            "$gt" if page.descending else "$lt": page.before,
        }
        if any(bound is not None for bound in bounds.values()):
            query["order"] = {sign: bound for sign, bound in bounds.items() if bound is not None}
        way = DESCENDING if page.descending else ASCENDING
        return [
            _record(found) async for found in self.records.find(query).sort("order", way).limit(page.limit)
        ]

    @_named
    async def sums(self, kind: str, where: Mapping[str, str]) -> dict[str, tuple[int, int]]:
        group = {"_id": "$status", "count": {"$sum": 1}, "size": {"$sum": "$size"}}
        rows = await self.records.aggregate([{"$match": {"kind": kind, **where}}, {"$group": group}])
        return {row["_id"]: (row["count"], row["size"]) async for row in rows}

    @_named
    async def due(self, now: float, limit: int) -> list[Record]:
        found = self.records.find({"due": {"$gt": 0, "$lte": now}}).sort("due", ASCENDING).limit(limit)
        return [_record(one) async for one in found]

    @_named
    async def write(self, owner: str, number: int, pieces: Sequence[bytes]) -> None:
        puts = [
            UpdateOne(
                {"_id": f"{owner}/{n:09d}"},
                {"$set": {"owner": owner, "number": n, "data": Binary(piece)}},
                upsert=True,
            )
            for n, piece in enumerate(pieces, number)
        ]
        await self.stored.bulk_write(puts)  # in as many messages of at most 48 MB as that takes

    @_named
    async def pieces(self, keys: Collection[tuple[str, int]]) -> dict[tuple[str, int], bytes]:
        names = [f"{owner}/{number:09d}" for owner, number in keys]
        rows = self.stored.find({"_id": {"$in": names}})
        return {(row["owner"], row["number"]): bytes(row["data"]) async for row in rows}

    @_named
    async def drop(self, owner: str) -> None:
        """See Documents. The range of ids needs no index of its own."""
        await self.stored.delete_many({"_id": {"$gte": f"{owner}/", "$lt": f"{owner}0"}})

    async def close(self) -> None:
        """See Documents. What is still asked ends first: it soon learns that the client is closed."""
        await self.client.close()
        if _asked:
            await asyncio.wait(_asked, timeout=SECONDS)
