"""The guard's metrics, with Triton's and the engine's, as one page: Prometheus reads it at /metrics of the
guard's HTTP listener. Every sample has a label `model`, the instance's MODEL_ID; docs/metrics.md lists them.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.multiprocess import MultiProcessCollector

from conch.http_client import HttpClient, Lost

disable_created_metrics()  # type: ignore[no-untyped-call]
TRITON_SECONDS = 1.0
OWN = re.compile(rb"(?:# (?:HELP|TYPE) )?nv_(?!inference_)")
BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
DEATHS = ("from outside", "by itself")
# Triton's statistics that become counters: a name, what it says, a label, and by the label's value where it
# stands in a model's row; ns become seconds.
TRITON: tuple[tuple[str, str, str, dict[str, str]], ...] = (
    (
        "conch_triton_inferences",
        "Requests that Triton has answered, by outcome",
        "outcome",
        {"success": "inference_stats.success.count", "failure": "inference_stats.fail.count"},
    ),
    (
        "conch_triton_request_seconds",
        "Time of Triton's requests by phase, in all; queue: until the model took them",
        "phase",
        {
            "queue": "inference_stats.queue.ns",
            "input": "inference_stats.compute_input.ns",
            "infer": "inference_stats.compute_infer.ns",
            "output": "inference_stats.compute_output.ns",
        },
    ),
    ("conch_triton_executions", "Batches of requests that a model was given", "", {"": "execution_count"}),
)


class GuardMetrics:
    """Metrics of one instance. `engine` is the folder where its Python stubs store theirs
    (serving/engine/metrics.py).
    """

    def __init__(self, model: str = "", engine: Path | None = None) -> None:
        self.model, self.engine = model, engine
        self.registry = CollectorRegistry()
        counter, gauge = partial(Counter, registry=self.registry), partial(Gauge, registry=self.registry)
        name, labels = "conch_kserve_requests_total", ["triton_model", "protocol", "status"]
        self.requests = counter(name, "KServe requests by answer", labels)
        self.seconds = Histogram(
            "conch_kserve_request_seconds",
            "Time to the complete answer",
            ["triton_model"],
            buckets=BUCKETS,
            registry=self.registry,
        )
        self.refused = counter(
            "conch_kserve_refused_total", "Requests that never reached the server", ["triton_model", "reason"]
        )
        self.handed_on = counter(
            "conch_kserve_handed_on_total", "Requests given to another instance", ["triton_model"]
        )
        self.in_flight = gauge("conch_kserve_requests_in_flight", "Requests that the tritonserver works on")
        self.serving = gauge("conch_triton_serving", "1 while the tritonserver answers")
        self.starts = counter("conch_triton_starts_total", "Starts of the tritonserver")
        name, labels = "conch_triton_deaths_total", ["reason"]
        self.deaths = counter(name, "Unexpected exits of the tritonserver", labels)
        name = "conch_triton_restarts_refused_total"
        self.kept = counter(name, "Restarts refused because the bundle cannot be served")
        for reason in DEATHS:  # a rate needs a sample before the first
            self.deaths.labels(reason)
        self._children: dict[tuple[str, ...], tuple[Any, Any]] = {}

    def note(self, model: str, protocol: str, status: str, seconds: float) -> None:
        """Count one answered inference request of a Triton model."""
        key = (model, protocol, status)
        if key not in self._children:
            self._children[key] = self.requests.labels(*key), self.seconds.labels(model)
        requests, histogram = self._children[key]
        requests.inc()
        histogram.observe(seconds)

    def page(self, statistics: Mapping[str, Any] | None) -> bytes:
        """Return everything in Prometheus' format. `statistics` is Triton's extension of that name; None
        while the server does not answer.
        """
        found = [*self.registry.collect(), *self._engine(), *counted(statistics or {"model_stats": []})]
        for family in found:
            family.samples = [
                sample._replace(labels={"model": self.model, **sample.labels}) for sample in family.samples
            ]
        return generate_latest(SimpleNamespace(collect=lambda: found))

    def _engine(self) -> Iterable[Metric]:
        if self.engine is None or not self.engine.is_dir():
            return ()
        collector = MultiProcessCollector(CollectorRegistry(), str(self.engine))  # type: ignore[no-untyped-call]
        found: Iterable[Metric] = collector.collect()  # type: ignore[no-untyped-call]
        return found


async def of_triton(triton: HttpClient | None) -> list[bytes]:
    """Read the lines of Triton's own metrics without nv_inference_…, which the guard's page has as
    conch_triton_…; none while it does not answer, or where it has no port for them.
    """
    with suppress(Lost, TimeoutError, OSError):
        async with asyncio.timeout(TRITON_SECONDS):
            if triton:
                answer = await triton.request("GET", "/metrics", {})
                return list(filter(OWN.match, (await answer.body()).splitlines(keepends=True)))
    return []


def counted(statistics: Mapping[str, Any]) -> Iterator[Metric]:
    """Convert Triton's statistics extension to counters in seconds; its numbers may be strings
    (https://github.com/triton-inference-server/server/blob/main/docs/protocol/extension_statistics.md).
    """
    for name, says, label, rows in TRITON:
        family = CounterMetricFamily(name, says, labels=["triton_model", *filter(None, [label])])
        for model in statistics["model_stats"]:
            for value, path in rows.items():
                family.add_metric([model["name"], *filter(None, [value])], _at(model, path))
        yield family


def _at(row: Any, path: str) -> float:
    for key in path.split("."):
        row = row.get(key, {})
    return float(row or 0) * (1e-9 if path.endswith(".ns") else 1)
