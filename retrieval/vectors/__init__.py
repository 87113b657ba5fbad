"""The vector database: for each vector store and embedding model a collection of vectors."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import structlog
from numpy.typing import NDArray

from conch.errors import ApiError

log = structlog.get_logger()


class VectorsDown(ApiError):
    """The vector database does not answer; clients read its name, the log has the reason."""

    def __init__(self, reason: Exception | str) -> None:
        message = "the vector database (Milvus) does not answer; try again in a few seconds"
        super().__init__(503, message, code="unavailable", retry_after=2)
        log.warning("no answer from the vector database", reason=str(reason)[:300])


@dataclass(frozen=True)
class Hit:
    """A passage that is near a query: in which build, of which chunk; the cosine."""

    build: str
    chunk: int
    score: float


class Vectors(Protocol):
    """A vector database. Every method raises VectorsDown when it does not answer."""

    async def create(self, collection: str, dimensions: int) -> None:
        """Make a collection, if it is not there."""

    async def put(
        self, collection: str, build: str, first: int, chunks: Sequence[int], values: NDArray[np.float32]
    ) -> None:
        """The passages `first`, `first` + 1, … of a build, their vectors [passages, dimensions], and the
        chunk that each is answered with; what was there is replaced.
        """

    async def count(self, collection: str, build: str) -> int:
        """How many vectors of a build searches find from now on; 0 where there is no such collection."""

    async def search(
        self, collection: str, query: NDArray[np.float32], limit: int, builds: Collection[str] | None = None
    ) -> list[Hit]:
        """The nearest to `query` [dimensions], best first; of these builds only, if any are named. Nothing
        where there is no such collection.
        """

    async def remove(self, collection: str, build: str) -> None:
        """Remove a build, if it is there."""

    async def builds(self, collection: str) -> set[str]:
        """All builds that have vectors."""

    async def collections(self) -> set[str]:
        """All collections."""

    async def drop(self, collection: str) -> None:
        """Remove a collection, if it is there."""

    async def close(self) -> None:
        """Close connections."""


def open_vectors(url: str, password: str = "") -> Vectors:
    """The database of a URL: http://host:19530, or unix:PATH of an embedded one (ops/vectors.py)."""
    from .milvus import MilvusVectors

    return MilvusVectors(url, f"root:{password}" if password else "")
