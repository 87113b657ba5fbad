"""The engine's part of a trace: one span for each stage of a request in the scheduler, made when it is
finished. Only for requests that Triton traces, and only where CONCH_TRACES_URL is set.
"""

from __future__ import annotations

import os
import time
from typing import Any

from ..triton.tracing import TRACEPARENT, traceparent

URL = os.environ.get("CONCH_TRACES_URL", "")
MILLISECONDS = 1000  # between two exports


class Spans:
    """Makes spans and sends them to an OTLP/HTTP collector."""

    def __init__(self, url: str = URL) -> None:
        self.tracer: Any = None
        self.provider: Any = None
        if url:
            self._open(url)

    def _open(self, url: str) -> None:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        exporter = OTLPSpanExporter(endpoint=f"{url.rstrip('/')}/v1/traces")
        self.provider = TracerProvider(resource=Resource.create({"service.name": "conch-engine"}))
        self.provider.add_span_processor(BatchSpanProcessor(exporter, schedule_delay_millis=MILLISECONDS))
        self.tracer = self.provider.get_tracer("conch")

    def parent(self, request: Any) -> Any:
        """Return a Triton request's trace parent, for `note`; None if it is not traced."""
        if self.tracer is None:
            return None
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        found = traceparent(request)
        return TraceContextTextMapPropagator().extract({TRACEPARENT: found}) if found else None

    def note(self, parent: Any, steps: dict[str, tuple[float, float]], **figures: int) -> None:
        """Make a span for each stage: name, start and end by time.monotonic(). The last has the figures."""
        if self.tracer is None or parent is None:
            return
        epoch, spans = time.time() - time.monotonic(), []
        for name, (begin, end) in steps.items():
            span = self.tracer.start_span(f"engine {name}", parent, start_time=int((epoch + begin) * 1e9))
            spans.append((span, int((epoch + end) * 1e9)))
        spans[-1][0].set_attributes({f"conch.{name}": value for name, value in figures.items()})
        for span, end_ns in spans:
            span.end(end_ns)

    def close(self) -> None:
        """Send remaining spans."""
        if self.provider:
            self.provider.shutdown()
