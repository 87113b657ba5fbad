"""Throughput and latency of the last 15 minutes, sampled from the metrics of all gateways.

Rates and quantiles are made of differences between two samples, as Prometheus makes them: a counter that
falls belongs to a gateway that was started anew, and counts from zero.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

SECONDS = 5.0
MINUTES = 15
KINDS = {"/v1/audio/": "speech", "/v1/completions": "text", "/v1/chat/": "text"}

Key = tuple[str, str, str, str]  # gateway, what it counts, kind of request, bucket's upper bound
Grown = tuple[str, str, str]  # the same, all gateways together


def kind_of(path: str) -> str | None:
    """Of a route's path; None for what is no inference."""
    return next((kind for start, kind in KINDS.items() if path.startswith(start)), None)


def counters(text: str) -> dict[Key, float]:
    """Of Prometheus text: requests, failures (status 400 and above), seconds that answers took in all, and
    the cumulative buckets of those.
    """
    found: defaultdict[Key, float] = defaultdict(float)
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = sample.labels
            if (kind := kind_of(labels.get("path", ""))) is None:
                continue
            gateway = labels.get("gateway", "")
            if sample.name == "conch_gateway_requests_total":
                found[gateway, "requests", kind, ""] += sample.value
                if int(labels["status"]) >= 400:
                    found[gateway, "failures", kind, ""] += sample.value
            elif sample.name == "conch_gateway_request_seconds_sum":
                found[gateway, "seconds", kind, ""] += sample.value
            elif sample.name == "conch_gateway_request_seconds_bucket":
                found[gateway, "bucket", kind, labels["le"]] += sample.value
    return dict(found)


def increase(before: Mapping[Key, float], now: Mapping[Key, float]) -> dict[Grown, float]:
    """By how much each counter has grown, all gateways together."""
    grown: defaultdict[Grown, float] = defaultdict(float)
    for key, value in now.items():
        old = before.get(key, 0.0)
        grown[key[1:]] += value - old if value >= old else value
    return grown


def quantile(buckets: Sequence[tuple[float, float]], q: float) -> float | None:
    """Of cumulative (upper bound, count) pairs, linear inside a bucket; in the last one its lower bound. None
    where nothing was counted
    (histogram_quantile in https://prometheus.io/docs/prometheus/latest/querying/functions).
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


def sample(grown: Mapping[Grown, float], kind: str, seconds: float) -> dict[str, float | None]:
    """One point: requests and failures per second; the seconds that an answer took, on average (exact) and at
    the 95th percentile (interpolated inside a bucket). None without a request.
    """
    requests = grown.get(("requests", kind, ""), 0.0)
    buckets = [
        (float(le), count) for (what, of, le), count in grown.items() if (what, of) == ("bucket", kind)
    ]
    return {
        "rate": round(requests / seconds, 3),
        "failures": round(grown.get(("failures", kind, ""), 0.0) / seconds, 3),
        "mean": grown.get(("seconds", kind, ""), 0.0) / requests if requests else None,
        "p95": quantile(buckets, 0.95),
    }


class History:
    """The last points of one deployment. Every gateway keeps them all, so that any of them may be asked."""

    def __init__(self) -> None:
        self.points: deque[dict[str, Any]] = deque(maxlen=int(MINUTES * 60 / SECONDS))

    async def run(self, scraped: Callable[[], Awaitable[str]]) -> None:
        """Sample until cancelled."""
        before, at = counters(await scraped()), time.monotonic()
        while True:
            await asyncio.sleep(SECONDS)
            try:
                now, then = counters(await scraped()), time.monotonic()
            except ValueError:  # what answered was no gateway's metrics; the next sample spans this one, too
                continue
            grown = increase(before, now)
            point = {kind: sample(grown, kind, then - at) for kind in dict.fromkeys(KINDS.values())}
            self.points.append({"time": round(time.time(), 1), **point})
            before, at = (
                {**before, **now},
                then,
            )  # a gateway that did not answer this time is not new next time
