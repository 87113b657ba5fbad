"""Throughput and latency of the last 15 minutes. Each gateway counts its own requests in slots of SECONDS of
Unix time; the gateway that is asked adds up the slots of all. Nothing runs while nobody asks.
"""

from __future__ import annotations

import json
import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from operator import add
from typing import Any

from ..metrics import REQUESTS

SECONDS = 5.0
MINUTES = 15
SLOTS = int(MINUTES * 60 / SECONDS)
KINDS = {
    "/v1/audio/": "speech",
    "/v1/completions": "text",
    "/v1/chat/": "text",
    "/v1/embeddings": "embeddings",
    "/v1/files": "search",
    "/v1/vector_stores": "search",
}
BOUNDS = (*REQUESTS, float("inf"))


def kind_of(path: str) -> str | None:
    """Return the kind of a route's path; None if it is not inference."""
    return next((kind for start, kind in KINDS.items() if path.startswith(start)), None)


def slot_at(seconds: float) -> int:
    """Return the number of the slot that contains a moment of Unix time."""
    return int(seconds // SECONDS)


def quantile(buckets: Sequence[tuple[float, float]], q: float) -> float | None:
    """Compute a quantile of cumulative (upper bound, count) pairs, linear inside a bucket; in the last
    bucket, its lower bound. None if nothing was counted (histogram_quantile in
    https://prometheus.io/docs/prometheus/latest/querying/functions).
    """
    rows = sorted(buckets)
    if not rows or rows[-1][1] <= 0:
        return None
    rank, low, below = q * rows[-1][1], 0.0, 0.0
    for bound, count in rows:
        if count >= rank and count > below:
            return low if bound == float("inf") else low + (bound - low) * (rank - below) / (count - below)
        low, below = bound, count
    return low


@dataclass
class Tally:
    """Requests of one kind in one slot: how many, how many failed (status 400 and above), the total seconds
    of answers, and how many took at most each of BOUNDS.
    """

    requests: int = 0
    failures: int = 0
    seconds: float = 0.0
    buckets: list[int] = field(default_factory=lambda: [0] * len(BOUNDS))

    def count(self, status: int, seconds: float) -> None:
        """Count one more request."""
        self.requests += 1
        self.failures += status >= 400
        self.seconds += seconds
        for i in range(bisect_left(BOUNDS, seconds), len(BOUNDS)):
            self.buckets[i] += 1

    def __add__(self, other: Tally) -> Tally:
        return Tally(
            self.requests + other.requests,
            self.failures + other.failures,
            self.seconds + other.seconds,
            [*map(add, self.buckets, other.buckets)],
        )

    def rates(self) -> dict[str, float | None]:
        """Return requests and failures per second, and the seconds of an answer: average (exact) and 95th
        percentile (interpolated inside a bucket). None without a request.
        """
        return {
            "rate": round(self.requests / SECONDS, 3),
            "failures": round(self.failures / SECONDS, 3),
            "mean": self.seconds / self.requests if self.requests else None,
            "p95": quantile([*zip(BOUNDS, self.buckets, strict=True)], 0.95),
        }


class History:
    """What one gateway has counted since it started. `clock` returns Unix time."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self.clock, self.since = clock, slot_at(clock())
        self.slots: dict[int, dict[str, Tally]] = {}

    def note(self, path: str, status: int, seconds: float) -> None:
        """Count a request of a route that has just been answered, and drop old slots."""
        if (kind := kind_of(path)) is None:
            return
        now = slot_at(self.clock())
        if now not in self.slots:
            self.slots = {slot: row for slot, row in self.slots.items() if slot >= now - SLOTS}
        self.slots.setdefault(now, {}).setdefault(kind, Tally()).count(status, seconds)

    def text(self) -> str:
        """Return JSON for other gateways."""
        rows = {slot: {kind: vars(one) for kind, one in row.items()} for slot, row in self.slots.items()}
        return json.dumps({"since": self.since, "slots": rows})

    def points(self, texts: Iterable[str]) -> list[dict[str, Any]]:
        """Return a point for each complete slot of all gateways whose `text` is given, oldest first: since
        the first of them started, but at most MINUTES. `time` is a slot's end in Unix time.
        """
        read = [one for text in texts if (one := _read(text))]
        last = slot_at(self.clock())
        first = max(min((since for since, _ in read), default=last), last - SLOTS)
        return [_point(slot, [slots.get(slot, {}) for _, slots in read]) for slot in range(first, last)]


def _read(text: str) -> tuple[int, dict[int, dict[str, Tally]]] | None:
    """Parse `History.text`; None for text of another version."""
    with suppress(ValueError, KeyError, TypeError, AttributeError):
        parsed = json.loads(text)
        rows = parsed["slots"].items()
        slots = {int(slot): {kind: Tally(**one) for kind, one in row.items()} for slot, row in rows}
        tallies = [one for row in slots.values() for one in row.values()]
        if all(len(one.buckets) == len(BOUNDS) for one in tallies):
            return int(parsed["since"]), slots
    return None


def _point(slot: int, rows: Sequence[Mapping[str, Tally]]) -> dict[str, Any]:
    sums = {kind: sum((row.get(kind, Tally()) for row in rows), Tally()) for kind in KINDS.values()}
    return {"time": (slot + 1) * SECONDS, **{kind: one.rates() for kind, one in sums.items()}}
