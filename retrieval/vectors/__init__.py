"""The vector database: one collection of vectors for each vector store and embedding model."""

from __future__ import annotations

from dataclasses import dataclass

import structlog

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
