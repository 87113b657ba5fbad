"""The document database: records that change one at a time, and blocks of bytes.

Nothing here needs a transaction over several records: every change of state is one compare-and-set of one
record (docs/decisions/0008-one-record-decides.md), which SQLite and a MongoDB without replicas both support.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import structlog

from conch.errors import ApiError

log = structlog.get_logger()
PIECE = 1 << 20  # bytes of a file in one piece; a MongoDB document may have 16 MB


class DocumentsDown(ApiError):
    """The document database does not answer; clients see its name, the log has the reason."""

    def __init__(self, name: str, reason: Exception) -> None:
        message = f"the document database ({name}) does not answer; try again in a few seconds"
        super().__init__(503, message, code="unavailable", retry_after=2)
        log.warning("no answer from the document database", reason=str(reason)[:300])


@dataclass(frozen=True)
class Record:
    """One object of a kind (file, store, attachment, batch).

    Attributes:
        parent: what it belongs to, for lists, as `link` and `batch`
        order: nanoseconds since 1970, the sort key
        due: seconds since 1970 at which the worker shall process it; 0 for never
        size: bytes, for sums
        version: number of changes, starting from a random number: a record that is removed and created again
            under the same id (an upload with the same idempotency key) must not be mistaken for the one that
            was read before
    """

    kind: str
    id: str
    status: str
    order: int
    parent: str = ""
    link: str = ""
    batch: str = ""
    due: float = 0
    size: int = 0
    version: int = field(default_factory=lambda: secrets.randbits(48))
    body: Mapping[str, Any] = field(default_factory=dict)

    @property
    def created(self) -> int:
        """Return seconds since 1970."""
        return self.order // 1_000_000_000


COLUMNS = ("kind", "id", "status", "order", "parent", "link", "batch", "due", "size", "version")


@dataclass(frozen=True)
class Page:
    """Selects records of a list: those whose named columns have these values, in order of creation, after or
    before (exclusively) a sort key.
    """

    kind: str
    where: Mapping[str, str] = field(default_factory=dict)
    statuses: Sequence[str] = ()
    limit: int = 20
    descending: bool = True
    after: int | None = None
    before: int | None = None


class Documents(Protocol):
    """A document database. Every method raises DocumentsDown when it does not answer."""

    async def insert(self, record: Record) -> bool:
        """Insert a record. Returns False, without a change, if there is one of this kind and id."""

    async def get(self, kind: str, ids: Collection[str]) -> dict[str, Record]:
        """Return those that exist, by id."""

    async def update(self, record: Record) -> Record | None:
        """Write a record if it has not changed since it was read, and return it; None if it has."""

    async def remove(self, record: Record) -> bool:
        """Remove a record if it has not changed since it was read."""

    async def page(self, page: Page) -> list[Record]:
        """Return a part of a list."""

    async def sums(self, kind: str, where: Mapping[str, str]) -> dict[str, tuple[int, int]]:
        """Return, by status, the number of records and their total size."""

    async def due(self, now: float, limit: int) -> list[Record]:
        """Return records that the worker shall process, longest due first."""

    async def write(self, owner: str, number: int, pieces: Sequence[bytes]) -> None:
        """Write blocks `number`, `number` + 1, …, replacing existing ones."""

    async def read(self, owner: str) -> AsyncIterator[bytes]:
        """Yield all blocks in order."""
        number = 0
        while block := (await self.pieces([(owner, number)])).get((owner, number)):
            yield block
            number += 1

    async def pieces(self, keys: Collection[tuple[str, int]]) -> dict[tuple[str, int], bytes]:
        """Return which of these blocks exist, by owner and number."""

    async def drop(self, owner: str) -> None:
        """Remove all blocks."""

    async def close(self) -> None:
        """Close connections."""


def open_documents(url: str, password: str = "") -> Documents:
    """Open the database of a URL: sqlite:PATH or mongodb://….

    Raises:
        ValueError: another scheme.
    """
    if url.startswith("sqlite:"):
        from .sqlite import SqliteDocuments

        return SqliteDocuments(url.removeprefix("sqlite:"))
    if url.startswith(("mongodb://", "mongodb+srv://")):
        from .mongo import MongoDocuments

        return MongoDocuments(url, password)
    raise ValueError(
        f"DOCUMENTS_URL={url!r} is not a supported URL; write mongodb://host:27017/conch or sqlite:PATH"
    )
