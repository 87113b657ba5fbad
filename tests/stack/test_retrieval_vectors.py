"""Milvus Lite finds every vector: of texts that are much alike a graph leaves some out (two in a thousand of
the attack's, with and without a filter).
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from pymilvus import MilvusClient

from retrieval.vectors.milvus import GRAPH, MilvusVectors

from .databases import Server, running

BUILDS, EACH, DIMENSIONS = 8, 250, 96
SAMPLE = 3  # every third is searched for
PLACE = "vs_alike"


def alike() -> NDArray[np.float32]:
    draw = np.random.default_rng(1)
    values = draw.standard_normal(DIMENSIONS) + 0.3 * draw.standard_normal((BUILDS * EACH, DIMENSIONS))
    return (values / np.linalg.norm(values, axis=1, keepdims=True)).astype(np.float32)


async def filled(vectors: MilvusVectors) -> None:
    """Each vector is a passage and chunk of its own."""
    await vectors.create(PLACE, DIMENSIONS)
    for build, values in enumerate(alike().reshape(BUILDS, EACH, DIMENSIONS)):
        await vectors.put(PLACE, f"file:{build}", range(EACH), values)


async def lost(vectors: MilvusVectors) -> list[int]:
    """Those that are not the nearest to themselves, among all or in their build."""
    found = []
    for number, value in list(enumerate(alike()))[::SAMPLE]:
        build, chunk = f"file:{number // EACH}", number % EACH
        for only in (None, [build]):
            hits = await vectors.search(PLACE, value, 3, only)
            if not hits or (hits[0].build, hits[0].chunk) != (build, chunk):
                found.append(number)
    return found


def index_of(server: Server) -> str:
    client = MilvusClient(server.url)
    kind = client.describe_index(PLACE, client.list_indexes(PLACE)[0])["index_type"]
    client.close()
    return str(kind)


def test_every_vector_is_found(tmp_path: Path) -> None:
    async def case(server: Server) -> None:
        vectors = MilvusVectors(server.url)
        await filled(vectors)
        while await vectors.count(PLACE, f"file:{BUILDS - 1}") < EACH:
            await asyncio.sleep(0.1)
        await asyncio.sleep(3)  # until what is new has been flushed and indexed
        assert not await lost(vectors)
        await vectors.close()

    with running("lite", tmp_path) as server:
        asyncio.run(case(server))
        assert index_of(server) == "FLAT"


def test_a_graph_of_an_earlier_version_is_replaced(tmp_path: Path) -> None:
    """When Milvus Lite starts again; the vectors stay."""

    async def made(server: Server) -> None:
        vectors = MilvusVectors(server.url)
        vectors.index = GRAPH
        await filled(vectors)
        await vectors.close()

    async def searched(server: Server) -> None:
        vectors = MilvusVectors(server.url)
        assert not await lost(vectors)
        await vectors.close()

    with running("lite", tmp_path) as server:
        asyncio.run(made(server))
        assert index_of(server) == "HNSW"
        server.kill()
        Path(server.url.removeprefix("unix:")).unlink()
        server.start()
        server.wait()
        assert index_of(server) == "FLAT"
        asyncio.run(searched(server))
