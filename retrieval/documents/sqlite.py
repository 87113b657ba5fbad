"""Records in an SQLite file (WAL), which several processes of one machine may share."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from . import COLUMNS, Documents, DocumentsDown, Page, Record

T = TypeVar("T")
BUSY_SECONDS = 20  # another process writes
LISTED = "(select value from json_each(?))"  # of any number of values, in JSON
NAMES = ", ".join(f'"{name}"' for name in (*COLUMNS, "body"))
SCHEMA = f"""
create table if not exists records ({NAMES}, primary key ("kind", "id")) without rowid;
create index if not exists by_parent on records ("kind", "parent", "order");
create index if not exists by_link on records ("kind", "link") where "link" <> '';
create index if not exists by_batch on records ("kind", "batch", "order") where "batch" <> '';
create index if not exists by_due on records ("due") where "due" > 0;
create table if not exists pieces (owner text, number integer, data blob, primary key (owner, number));
"""


def _record(row: Sequence[Any]) -> Record:
    return Record(**dict(zip(COLUMNS, row, strict=False)), body=json.loads(row[-1]))


def _row(record: Record) -> list[Any]:
    return [*(getattr(record, name) for name in COLUMNS), json.dumps(dict(record.body))]


def _conditions(where: Mapping[str, str]) -> tuple[str, list[Any]]:
    return "".join(f' and "{name}" = ?' for name in where), list(where.values())


class SqliteDocuments(Documents):
    """A connection in its own thread, opened, and reopened, when needed."""

    def __init__(self, path: str) -> None:
        self.path = Path(path)
        self.thread = ThreadPoolExecutor(1, "sqlite")
        self.connection: sqlite3.Connection | None = None

    async def _run(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Run `work` in its own transaction. It must not return a cursor: freed in another thread, it would
        reset a statement that the connection may be using again (which SQLite reports as misuse).
        """
        return await asyncio.get_running_loop().run_in_executor(self.thread, self._work, work)

    def _work(self, work: Callable[[sqlite3.Connection], T]) -> T:
        try:
            self.connection = self.connection or self._open()
            with self.connection:
                return work(self.connection)
        except sqlite3.Error as error:
            if self.connection:
                self.connection.close()
            self.connection = None
            raise DocumentsDown("SQLite", error) from error

    def _open(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self.path, timeout=BUSY_SECONDS, check_same_thread=False)
        connection.execute("pragma journal_mode = wal")
        connection.execute("pragma synchronous = full")  # what was acknowledged outlives a power cut
        connection.executescript(SCHEMA)
        return connection

    async def insert(self, record: Record) -> bool:
        marks = ", ".join("?" * (len(COLUMNS) + 1))
        text = f"insert or ignore into records ({NAMES}) values ({marks})"  # noqa: S608
        return await self._run(lambda db: db.execute(text, _row(record)).rowcount == 1)

    async def get(self, kind: str, ids: Collection[str]) -> dict[str, Record]:
        text = f'select {NAMES} from records where "kind" = ? and "id" in {LISTED}'  # noqa: S608
        values = [kind, json.dumps(list(ids))]
        return await self._run(lambda db: {row[1]: _record(row) for row in db.execute(text, values)})

    async def update(self, record: Record) -> Record | None:
        written = replace(record, version=record.version + 1)
        sets = ", ".join(f'"{name}" = ?' for name in (*COLUMNS, "body"))
        text = f'update records set {sets} where "kind" = ? and "id" = ? and "version" = ?'  # noqa: S608
        values = [*_row(written), record.kind, record.id, record.version]
        changed = await self._run(lambda db: db.execute(text, values).rowcount)
        return written if changed else None

    async def remove(self, record: Record) -> bool:
        text = 'delete from records where "kind" = ? and "id" = ? and "version" = ?'
        values = [record.kind, record.id, record.version]
        return await self._run(lambda db: db.execute(text, values).rowcount == 1)

    async def page(self, page: Page) -> list[Record]:
        more, values = _conditions(page.where)
        if page.statuses:
            more += f' and "status" in {LISTED}'
            values.append(json.dumps(list(page.statuses)))
        signs = ("<", ">") if page.descending else (">", "<")
        for bound, sign in zip((page.after, page.before), signs, strict=True):
            if bound is not None:
                more += f' and "order" {sign} ?'
                values.append(bound)
        way = "desc" if page.descending else "asc"
        text = f'select {NAMES} from records where "kind" = ?{more} order by "order" {way} limit ?'  # noqa: S608
        return await self._run(
            lambda db: [_record(row) for row in db.execute(text, [page.kind, *values, page.limit])]
        )

    async def sums(self, kind: str, where: Mapping[str, str]) -> dict[str, tuple[int, int]]:
        more, values = _conditions(where)
        text = f'select "status", count(*), sum("size") from records where "kind" = ?{more} group by "status"'  # noqa: S608
        return await self._run(
            lambda db: {status: (n, size) for status, n, size in db.execute(text, [kind, *values])}
        )

    async def due(self, now: float, limit: int) -> list[Record]:
        text = f'select {NAMES} from records where "due" > 0 and "due" <= ? order by "due" limit ?'  # noqa: S608
        return await self._run(lambda db: [_record(row) for row in db.execute(text, [now, limit])])

    async def write(self, owner: str, number: int, pieces: Sequence[bytes]) -> None:
        rows = [(owner, n, piece) for n, piece in enumerate(pieces, number)]
        text = "insert or replace into pieces values (?, ?, ?)"
        await self._run(lambda db: db.executemany(text, rows).rowcount)

    async def pieces(self, keys: Collection[tuple[str, int]]) -> dict[tuple[str, int], bytes]:
        text = "select data from pieces where owner = ? and number = ?"

        def work(db: sqlite3.Connection) -> dict[tuple[str, int], bytes]:
            rows = {key: db.execute(text, key).fetchone() for key in keys}
            return {key: row[0] for key, row in rows.items() if row}

        return await self._run(work)

    async def drop(self, owner: str) -> None:
        await self._run(lambda db: db.execute("delete from pieces where owner = ?", [owner]).rowcount)

    async def close(self) -> None:
        def work() -> None:
            if self.connection:
                self.connection.close()
            self.connection = None

        await asyncio.get_running_loop().run_in_executor(self.thread, work)
        self.thread.shutdown(wait=False)
