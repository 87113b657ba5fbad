"""Metrics of the scheduler. A Python stub has no HTTP listener: prometheus_client stores the values in files
of the folder PROMETHEUS_MULTIPROC_DIR, which the guard sets and reads
(https://prometheus.github.io/client_python/multiprocess/). Without it they stay in this process.
"""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

WAITS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
STEPS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1)


def _gauge(name: str, says: str, registry: CollectorRegistry) -> Gauge:
    """Make a gauge that only the instance's one engine process sets."""
    return Gauge(name, says, registry=registry, multiprocess_mode="livemostrecent")


def _histogram(name: str, says: str, buckets: tuple[float, ...], registry: CollectorRegistry) -> Histogram:
    return Histogram(name, says, buckets=buckets, registry=registry)


class EngineMetrics:
    """Metrics of one scheduler."""

    def __init__(self) -> None:
        own = self.registry = CollectorRegistry()
        says = "Time that a request waits until it is admitted to the running batch"
        self.queue = _histogram("conch_engine_queue_seconds", says, WAITS, own)
        says = "Time from its admission until its encoder is done; nothing for families without one"
        self.encode = _histogram("conch_engine_encode_seconds", says, WAITS, own)
        says = "Time from a request's arrival to its first token"
        self.first = _histogram("conch_engine_first_token_seconds", says, WAITS, own)
        says = "Time between two tokens of a request, its mean"
        self.token = _histogram("conch_engine_token_seconds", says, STEPS, own)
        self.tokens = Counter(
            "conch_engine_tokens_total",
            "Tokens of prompts, read or found cached, and tokens written, those of the best beam",
            ["kind"],
            registry=own,
        )
        self.waiting = _gauge("conch_engine_requests_waiting", "Requests that wait for a place", own)
        self.rows = _gauge("conch_engine_rows_in_use", "Rows of the running batch", own)
        self.rows_most = _gauge("conch_engine_rows", "Rows that the running batch may have", own)
        self.cache = _gauge(
            "conch_engine_cache_used_ratio",
            "Positions of the decoder's cache in use, of those that all rows can have",
            own,
        )
        kinds = ("read", "cached", "written")
        self.read, self.cached, self.made = (self.tokens.labels(kind) for kind in kinds)
