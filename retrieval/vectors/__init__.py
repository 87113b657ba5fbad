"""The vector database: one collection of vectors for each vector store and embedding model."""

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
    """The vector database does not answer; clients see its name, the log has the reason."""

    def __init__(self, reason: Exception | str) -> None:
        message = "the vector database (Milvus) does not answer; try again in a few seconds"
        super().__init__(503, message, code="unavailable", retry_after=2)
        log.warning("no answer from the vector database", reason=str(reason)[:300])


@dataclass(frozen=True)
class Hit:
    """A passage near a query: its build, its chunk, the cosine."""

    build: str
    chunk: int
    score: float


class Vectors(Protocol):
    """A vector database. Every method raises VectorsDown when it does not answer."""

    async def create(self, collection: str, dimensions: int) -> None:
        """Create a collection unless it exists."""

    async def put(
        self, collection: str, build: str, first: int, chunks: Sequence[int], values: NDArray[np.float32]
    ) -> None:
        """Write the passages `first`, `first` + 1, … of a build, their vectors [passages, dimensions], and
        the chunk that is returned for each, replacing existing ones.
        """

    async def count(self, collection: str, build: str) -> int:
        """Return how many vectors of a build searches can find now; 0 if there is no such collection."""

    async def search(
        self, collection: str, query: NDArray[np.float32], limit: int, builds: Collection[str] | None = None
    ) -> list[Hit]:
        """Return the nearest to `query` [dimensions], best first, of these builds only if any are given;
        empty if there is no such collection.
        """

    async def remove(self, collection: str, build: str) -> None:
        """Remove a build if it exists."""

    async def builds(self, collection: str) -> set[str]:
        """Return all builds that have vectors."""

    async def collections(self) -> set[str]:
        """Return all collections."""

    async def drop(self, collection: str) -> None:
        """Remove a collection if it exists."""

    async def close(self) -> None:
        """Close connections."""


def open_vectors(url: str, password: str = "") -> Vectors:
    """Open the database of a URL: http://host:19530, or unix:PATH of an embedded one (ops/vectors.py)."""
    from .milvus import MilvusVectors

    return MilvusVectors(url, f"root:{password}" if password else "")
