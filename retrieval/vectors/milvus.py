"""Vectors in Milvus, through pymilvus: a standalone server, a cluster, or Milvus Lite on a socket.

Uses the blocking client in threads: pymilvus calls its asynchronous one experimental, and it requests
timestamps that Milvus Lite does not have.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

import grpc
import numpy as np
from numpy.typing import NDArray
from pymilvus import DataType, MilvusClient
from pymilvus.exceptions import MilvusException

from . import Hit, VectorsDown

T = TypeVar("T")
SECONDS = 10.0
THREADS = 8
# The HNSW graph, and how far a search walks it: docs/benchmarks/retrieval.md.
GRAPH = {"index_type": "HNSW", "params": {"M": 16, "efConstruction": 100}}
CANDIDATES = 400
# Milvus Lite compares a query with all vectors: its graphs leave some of texts that are much alike out.
EXACT = {"index_type": "FLAT", "params": {}}
AT_ONCE = 500  # vectors in one message
# The passages that messages begin with, of files of up to half a million; Milvus Lite knows no remainders.
FIRST = f"passage in {[*range(0, 500_000, AT_ONCE)]}"
NOT_FOUND = 100  # Milvus' code for a collection that does not exist
FAILED = (MilvusException, grpc.RpcError, ValueError, ConnectionError)


def _quoted(builds: Collection[str]) -> str:
    return "build in [" + ",".join(f'"{build}"' for build in sorted(builds)) + "]"


def _unless_there(there: Callable[[], Any], make: Callable[[], None]) -> None:
    """Ignore the error that a collection exists: another worker may create it at the same moment."""
    if there():
        return
    try:
        make()
    except MilvusException:
        if not there():
            raise


class MilvusVectors:
    """A client of the database at http://host:19530, or unix:PATH of an embedded one (ops/vectors.py), that
    is opened, and reopened, when needed; `password` is root's. Every method raises VectorsDown when the
    database does not answer.
    """

    def __init__(self, url: str, password: str = "") -> None:
        self.url, self.token = url, f"root:{password}" if password else ""
        self.index: dict[str, Any] = EXACT if url.startswith("unix:") else GRAPH
        self.threads = ThreadPoolExecutor(THREADS, "milvus")
        self.client: MilvusClient | None = None
        logging.getLogger("pymilvus").setLevel(
            logging.CRITICAL
        )  # failures are raised and logged by name here

    async def _run(self, work: Callable[[MilvusClient], T], missing: T | None = None) -> T:
        """Run `work` in a thread; return `missing` if its collection does not exist."""
        return await asyncio.get_running_loop().run_in_executor(self.threads, self._work, work, missing)

    def _work(self, work: Callable[[MilvusClient], T], missing: T | None) -> T:
        try:
            client = self.client = self.client or MilvusClient(self.url, token=self.token, timeout=SECONDS)
            return work(client)
        except FAILED as error:
            if getattr(error, "code", None) == NOT_FOUND and missing is not None:
                return missing
            self.client = None
            raise VectorsDown(error) from error

    async def create(self, collection: str, dimensions: int) -> None:
        """Create a collection unless it exists. Inner products of vectors of length one are cosines. Each
        step is done where it has not been: the one that began may have been killed.
        """

        def work(client: MilvusClient) -> None:
            schema = MilvusClient.create_schema(auto_id=False, enable_dynamic_field=False)
            schema.add_field("id", DataType.VARCHAR, is_primary=True, max_length=128)
            schema.add_field("build", DataType.VARCHAR, max_length=96)
            schema.add_field("passage", DataType.INT64)
            schema.add_field("chunk", DataType.INT64)
            schema.add_field("vector", DataType.FLOAT_VECTOR, dim=dimensions)
            index = MilvusClient.prepare_index_params()
            index.add_index("vector", metric_type="IP", **self.index)
            limit = {"timeout": SECONDS}
            strong = partial(client.create_collection, schema=schema, consistency_level="Strong", **limit)
            _unless_there(partial(client.has_collection, collection, **limit), partial(strong, collection))
            _unless_there(
                partial(client.list_indexes, collection, **limit),
                partial(client.create_index, collection, index, **limit),
            )
            client.load_collection(collection, **limit)

        await self._run(work)

    async def put(
        self,
        collection: str,
        build: str,
        chunks: Sequence[int],
        values: NDArray[np.float32],
        first: int = 0,
    ) -> None:
        """Write the passages `first`, `first` + 1, … of a build, their vectors [passages, dimensions], and
        the chunk that is returned for each, replacing existing ones.
        """
        rows: list[dict[str, Any]] = [
            {"id": f"{build}/{n}", "build": build, "passage": n, "chunk": int(chunk), "vector": value}
            for n, (chunk, value) in enumerate(zip(chunks, values, strict=True), first)
        ]
        for start in range(0, len(rows), AT_ONCE):
            part = rows[start : start + AT_ONCE]
            await self._run(lambda client, part=part: client.upsert(collection, part, timeout=SECONDS))  # type: ignore[misc]

    async def count(self, collection: str, build: str) -> int:
        """Return how many vectors of a build searches can find now; 0 if there is no such collection. A
        strong read waits until every node has what was written before it.
        """

        def work(client: MilvusClient) -> int:
            rows = client.query(
                collection,
                filter=_quoted([build]),
                output_fields=["count(*)"],
                consistency_level="Strong",
                timeout=SECONDS,
            )
            return int(rows[0]["count(*)"])

        return await self._run(work, 0)

    async def search(
        self, collection: str, query: NDArray[np.float32], limit: int, builds: Collection[str] | None = None
    ) -> list[Hit]:
        """Return the nearest to `query` [dimensions], best first, of these builds only if any are given;
        empty if there is no such collection. What `count` has seen is visible, so that nothing waits for
        Milvus' clock; but one that was started again reads its log first, and answers with less until then.
        "Bounded" waits for what is older than five seconds.
        """

        def work(client: MilvusClient) -> list[Hit]:
            found = client.search(
                collection,
                data=[query],
                filter="" if builds is None else _quoted(builds),
                limit=limit,
                output_fields=["build", "chunk"],
                search_params={"params": {"ef": max(CANDIDATES, 2 * limit)}},
                consistency_level="Bounded",
                timeout=SECONDS,
            )
            return [
                Hit(row["entity"]["build"], row["entity"]["chunk"], float(row["distance"]))
                for row in found[0]
            ]

        return await self._run(work, [])

    async def remove(self, collection: str, build: str) -> None:
        """Remove a build if it exists."""

        def work(client: MilvusClient) -> bool:
            client.delete(collection, filter=_quoted([build]), timeout=SECONDS)
            return True

        await self._run(work, False)

    async def builds(self, collection: str) -> set[str]:
        """Return all builds that have vectors, by the first passage of each message, since any of them may
        be the one that came.
        """

        def work(client: MilvusClient) -> set[str]:
            found: set[str] = set()
            iterator = client.query_iterator(
                collection, batch_size=1000, filter=FIRST, output_fields=["build"], timeout=SECONDS
            )
            while rows := iterator.next():
                found |= {row["build"] for row in rows}
            iterator.close()
            return found

        return await self._run(work, set())

    async def collections(self) -> set[str]:
        """Return all collections."""
        return await self._run(lambda client: set(client.list_collections(timeout=SECONDS)))

    async def drop(self, collection: str) -> None:
        """Remove a collection if it exists."""
        await self._run(lambda client: client.drop_collection(collection, timeout=SECONDS))

    async def close(self) -> None:
        """Close connections."""
        if self.client:
            await asyncio.to_thread(self.client.close)
        self.threads.shutdown(wait=False)
