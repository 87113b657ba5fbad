"""Many vectors in one collection, written and searched as the gateway does it: how long loading takes, recall
and latency. `python -m scripts.benchmarks.vectors --url http://127.0.0.1:19530 --count 1000000`, or
`--url unix:PATH` for Milvus Lite (ops/vectors.py). The collection is dropped at the end, unless `--keep`.

Vectors are made as encoders' are: of few dimensions in truth, spread over many, with noise (random ones of
384 dimensions have no neighbours that are much nearer than others). Or, with `--texts http://127.0.0.1:8080`,
they are those of pieces of Python's manual, embedded by all-minilm-l6-v2 of a Conch there. Queries are of the
same kind; exact neighbours are computed here.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
import random
import time
from collections.abc import Callable, Sequence
from functools import cache
from pydoc_data.topics import topics

import httpx
import numpy as np
from numpy.typing import NDArray
from pymilvus import MilvusClient

from gateway.retrieval.vectors import Vectors, VectorsDown, open_vectors

MODEL = "all-minilm-l6-v2"
DIMENSIONS = 384
HIDDEN = 48  # dimensions in truth
NOISE = 0.1
BUILD = 1000  # vectors of one build
TOP = 10
QUERIES = 10**9  # their seed
WIDTH = 4 * TOP  # what gateway/retrieval/search.py asks for
WARM, FEW = 20, 20  # searches first; searches while hardly anything has an index and a search takes a second
AT_ONCE = 2
Floats = NDArray[np.float32]
Source = Callable[[int], Floats]  # vectors [BUILD, DIMENSIONS] by number


def made(seed: int) -> Floats:
    """Unit vectors [BUILD, DIMENSIONS]; the seed alone decides which."""
    spread = np.random.default_rng(0).standard_normal((HIDDEN, DIMENSIONS), np.float32)
    draw = np.random.default_rng(seed + 1)
    values: Floats = draw.standard_normal((BUILD, HIDDEN), np.float32) @ spread / HIDDEN**0.5
    values += NOISE * draw.standard_normal((BUILD, DIMENSIONS), np.float32)
    values /= np.linalg.norm(values, axis=1, keepdims=True)
    return values


def pieces(seed: int) -> list[str]:
    """BUILD texts of 5 to 40 words."""
    words = " ".join(topics[name] for name in sorted(topics)).split()
    draw = random.Random(seed)
    starts = [draw.randrange(len(words) - 40) for _ in range(BUILD)]
    return [" ".join(words[start : start + draw.randint(5, 40)]) for start in starts]


def embedding(url: str) -> Source:
    """Vectors of such texts; each is asked for once."""
    client = httpx.Client(trust_env=False, base_url=url, timeout=600)

    @cache
    def embed(seed: int) -> Floats:
        body = {"model": MODEL, "input": pieces(seed), "truncate": True, "encoding_format": "base64"}
        answer = client.post("/v1/embeddings", json=body).raise_for_status()
        rows = [base64.b64decode(row["embedding"]) for row in answer.json()["data"]]
        return np.frombuffer(b"".join(rows), "<f4").reshape(BUILD, DIMENSIONS)

    return embed


async def load(vectors: Vectors, place: str, count: int, source: Source) -> None:
    """Write them, AT_ONCE builds beside each other."""
    await vectors.create(place, DIMENSIONS)
    gate = asyncio.Semaphore(AT_ONCE)

    async def put(number: int) -> None:
        async with gate:
            values = await asyncio.to_thread(source, number)
            await vectors.put(place, f"{number}:a", 0, range(BUILD), values)
            if number % 50 == 49:
                print(f"{(number + 1) * BUILD} vectors, {time.monotonic() - started:.0f} s", flush=True)

    started = time.monotonic()
    await asyncio.gather(*(put(number) for number in range(count // BUILD)))


def nearest(queries: Floats, count: int, source: Source) -> list[set[tuple[str, int]]]:
    """The TOP exact neighbours of each query: build and passage."""
    best = np.full((len(queries), 0), 0, np.float32)
    names = np.zeros((len(queries), 0), np.int64)
    for number in range(count // BUILD):
        products = queries @ source(number).T
        best = np.concatenate([best, products], 1)
        row = np.arange(number * BUILD, (number + 1) * BUILD)
        names = np.concatenate([names, np.broadcast_to(row, products.shape)], 1)
        kept = np.argpartition(-best, TOP, 1)[:, :TOP]
        best, names = np.take_along_axis(best, kept, 1), np.take_along_axis(names, kept, 1)
    return [{(f"{name // BUILD}:a", int(name % BUILD)) for name in row} for row in names]


def indexed(url: str, place: str, count: int, seconds: float) -> float:
    """Seconds until the server has an index of all; infinite if that takes longer than `seconds`. Milvus Lite
    has no such state: 0.
    """
    client, started = MilvusClient(url), time.monotonic()
    (name,) = client.list_indexes(place)
    client.flush(place)
    while time.monotonic() - started < seconds:
        state = client.describe_index(place, name)
        if "pending_index_rows" not in state:
            return 0.0
        if int(state["pending_index_rows"]) == 0 and int(state["indexed_rows"]) >= count:
            return time.monotonic() - started
        print(f"indexed: {state['indexed_rows']}, pending: {state['pending_index_rows']}", flush=True)
        time.sleep(10)
    return float("inf")


async def searched(
    vectors: Vectors, place: str, queries: Floats, clients: int
) -> tuple[list[float], list[set[tuple[str, int]]]]:
    """Seconds of each search, and what it found; so many at once. One that is given up takes for ever."""
    gate = asyncio.Semaphore(clients)

    async def one(query: Floats) -> tuple[float, set[tuple[str, int]]]:
        async with gate:
            started = time.monotonic()
            try:
                hits = await vectors.search(place, query, WIDTH)
            except VectorsDown:
                return float("inf"), set()
            return time.monotonic() - started, {(hit.build, hit.chunk) for hit in hits[:TOP]}

    rows = await asyncio.gather(*(one(query) for query in queries))
    return [seconds for seconds, _ in rows], [found for _, found in rows]


def shown(seconds: Sequence[float]) -> dict[str, float]:
    """Percentiles in milliseconds."""
    return {
        f"p{at}_ms": round(1000 * float(np.percentile(seconds, at, method="higher")), 1) for at in (50, 99)
    }


async def report(
    vectors: Vectors,
    place: str,
    queries: Floats,
    exact: list[set[tuple[str, int]]],
    state: str,
    at_once: Sequence[int] = (1, 8),
) -> None:
    """Recall and latency of one client and of eight: a line of JSON for each."""
    await searched(vectors, place, queries[: WARM if len(queries) > FEW else 0], 1)
    for clients in at_once:
        seconds, found = await searched(vectors, place, queries, clients)
        recall = np.mean([len(one & own) / TOP for one, own in zip(found, exact, strict=True)])
        line = {"state": state, "clients": clients, "recall": round(float(recall), 4), **shown(seconds)}
        line |= {"given up": int(np.isinf(seconds).sum())}
        print(json.dumps(line), flush=True)


async def run(given: argparse.Namespace) -> None:
    """Load, wait for the index, search; one line of JSON for each."""
    vectors, place = open_vectors(given.url), given.collection
    source = embedding(given.texts) if given.texts else made
    if not given.loaded:
        started = time.monotonic()
        await load(vectors, place, given.count, source)
        print(
            json.dumps({"vectors": given.count, "load_s": round(time.monotonic() - started, 1)}), flush=True
        )
    ended = time.monotonic()
    queries = source(QUERIES)[: given.queries]
    exact = nearest(queries, given.count, source)
    await report(vectors, place, queries[:FEW], exact[:FEW], "as loaded", [1])
    waited = await asyncio.to_thread(indexed, given.url, place, given.count, given.seconds)
    print(
        json.dumps({"index_s": round(waited, 1), "since_loaded_s": round(time.monotonic() - ended, 1)}),
        flush=True,
    )
    if waited:
        await report(vectors, place, queries, exact, "indexed")
    if not given.keep:
        await vectors.drop(place)
    await vectors.close()


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", required=True)
    parser.add_argument("--count", type=int, default=1_000_000)
    parser.add_argument("--texts", default="", help="where texts are embedded; else vectors are made up")
    parser.add_argument("--queries", type=int, default=500)
    parser.add_argument("--seconds", type=float, default=3600, help="how long to wait for the index")
    parser.add_argument("--collection", default="conch_benchmark")
    parser.add_argument("--loaded", action="store_true", help="the vectors are there from an earlier run")
    parser.add_argument("--keep", action="store_true")
    asyncio.run(run(parser.parse_args()))


if __name__ == "__main__":
    main()
