"""What a guard counts; Prometheus reads it at /metrics of its HTTP door."""

from __future__ import annotations

from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics

disable_created_metrics()  # type: ignore[no-untyped-call]
BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)


class Metrics:
    """Metrics of one instance."""

    def __init__(self) -> None:
        own = self.registry = CollectorRegistry()
        self.requests = Counter(
            "conch_kserve_requests_total",
            "KServe requests by answer",
            ["model", "protocol", "status"],
            registry=own,
        )
        self.seconds = Histogram(
            "conch_kserve_request_seconds",
            "Time to the complete answer",
            ["model"],
            buckets=BUCKETS,
            registry=own,
        )
        self.refused = Counter(
            "conch_kserve_refused_total",
            "Requests that never reached the server",
            ["model", "reason"],
            registry=own,
        )
        self.handed_on = Counter(
            "conch_kserve_handed_on_total", "Requests given to another instance", ["model"], registry=own
        )
        self.starts = Counter("conch_triton_starts_total", "Starts of the tritonserver", registry=own)
        self.deaths = Counter(
            "conch_triton_deaths_total",
            "Ends of the tritonserver that nobody asked for",
            ["reason"],
            registry=own,
        )
        self.kept = Counter(
            "conch_restarts_refused_total", "Restarts that the bundle was not fit for", registry=own
        )
        self.serving = Gauge("conch_triton_serving", "1 while the tritonserver answers", registry=own)
        self.in_flight = Gauge(
            "conch_kserve_requests_in_flight", "Requests that the tritonserver works on", registry=own
        )
        self._children: dict[tuple[str, ...], tuple[Any, Any]] = {}

    def note(self, model: str, protocol: str, status: str, seconds: float) -> None:
        """Count one answered inference request."""
        key = (model, protocol, status)
        if key not in self._children:
            self._children[key] = self.requests.labels(*key), self.seconds.labels(model)
        requests, histogram = self._children[key]
        requests.inc()
        histogram.observe(seconds)
