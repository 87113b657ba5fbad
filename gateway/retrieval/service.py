"""Retrieval of one gateway: databases, models, worker. It is enabled where both databases are configured and
a model that embeds texts is served; otherwise none of its libraries is imported.
"""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from conch.deployment import Pool
from conch.tasks import end
from retrieval.documents import open_documents
from retrieval.library import Item, Library
from retrieval.maintenance import sweeping
from retrieval.worker import Worker, WorkerLimits

from ..admission import Admission
from ..embeddings.embedder import embed, places
from ..settings import Settings
from ..triton import Triton
from .answerer import ServedAnswerer, answers


class ServedEmbedder:
    """A model of this deployment, called as /v1/embeddings calls it. See library.Embedder."""

    def __init__(self, triton: Triton, pool: Pool, admission: Admission) -> None:
        self.triton, self.pool, self.admission = triton, pool, admission
        self.dimensions, self.positions = pool.dimensions, pool.positions
        self.pictures = pool.embeds_pictures

    async def embed(
        self, items: Sequence[Item], *, cut: bool
    ) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """See library.Embedder. A batch of the worker takes as many places as a request's."""
        with self.admission.place(self.pool, places(items, self.pool)):
            name = f"retrieval-{uuid.uuid4().hex[:8]}"
            vectors = await embed(self.triton, self.pool, items, name, truncate=cut)
        norms = np.linalg.norm(vectors.values, axis=1, keepdims=True)
        return vectors.values / np.maximum(norms, 1e-12), vectors.lengths


@dataclass(frozen=True)
class Retrieval:
    """The library, its worker, and the models that answer questions about pictures."""

    library: Library
    worker: Worker
    answerers: Mapping[str, ServedAnswerer]

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Run the worker and the sweeps; connections are closed at the end."""
        tasks = [asyncio.create_task(work) for work in (self.worker.run(), sweeping(self.library))]
        try:
            yield
        finally:
            await end(tasks)
            await self.library.documents.close()
            await self.library.vectors.close()


def secret(file: Path | None) -> str:
    """Read a file with one secret; empty without one."""
    return file.read_text("utf-8").strip() if file else ""


def open_library(
    settings: Settings,
    pools: Mapping[str, Pool],
    triton: Triton,
    embeddings: Admission,
) -> Library | None:
    """Open the library of a deployment; None where retrieval is off. Models take their places of
    `embeddings`.
    """
    able = {name: pool for name, pool in pools.items() if pool.embeds_documents}
    if not (able and settings.documents_url and settings.vectors_url):
        return None
    from retrieval.vectors.milvus import MilvusVectors

    able |= {name: pool for name, pool in pools.items() if pool.embeds_pictures}
    return Library(
        open_documents(settings.documents_url, secret(settings.mongo_password_file)),
        MilvusVectors(settings.vectors_url, secret(settings.milvus_password_file)),
        {name: ServedEmbedder(triton, pool, embeddings) for name, pool in able.items()},
    )


def open_retrieval(
    settings: Settings,
    pools: Mapping[str, Pool],
    triton: Triton,
    embeddings: Admission,
    generations: Admission,
) -> Retrieval | None:
    """Open the retrieval of a deployment, not yet running; None where it is off. Models that answer questions
    about pictures take their places of `generations`.
    """
    if (library := open_library(settings, pools, triton, embeddings)) is None:
        return None
    able = {name: ServedAnswerer(triton, pool, generations) for name, pool in pools.items() if answers(pool)}
    limits = WorkerLimits(settings.extract_seconds, settings.max_pictures_bytes)
    return Retrieval(library, Worker(library, limits), able)
