"""OpenTelemetry traces: a span for nginx's part, one for each request, and one for each call to Triton, whose
own spans and those of the engine continue it (W3C's traceparent, https://www.w3.org/TR/trace-context/). nginx
makes none itself: it reports when it started to read a request. Off unless CONCH_TRACES_URL is set; spans
contain names, times and figures, never texts, audio or keys.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import contextmanager

from opentelemetry.context import Context
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.sampling import ParentBasedTraceIdRatio
from opentelemetry.trace import (
    INVALID_SPAN,
    NoOpTracerProvider,
    Span,
    SpanKind,
    Status,
    StatusCode,
    get_current_span,
    set_span_in_context,
)
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

W3C = TraceContextTextMapPropagator()
SECONDS = 1000  # milliseconds between two exports
TAKEN = "x-conch-taken"  # nginx's, "$msec $request_time": when it handed a request on, how long it had it
TIMES = re.compile(r"(\d{1,12})\.(\d{3}) (\d{1,9})\.(\d{3})")


class Traces:
    """Makes spans, and sends them to an OTLP/HTTP collector at `url`, such as http://collector:4318; with ""
    nothing is kept. `sampled` is the fraction of traced requests among those without a traceparent; a client
    that sends one decides.
    """

    def __init__(self, url: str = "", sampled: float = 1.0) -> None:
        self.provider: TracerProvider | None = None
        if url:
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

            exporter = OTLPSpanExporter(endpoint=f"{url.rstrip('/')}/v1/traces")
            self.provider = TracerProvider(
                ParentBasedTraceIdRatio(sampled), Resource.create({"service.name": "conch-gateway"})
            )
            self.provider.add_span_processor(BatchSpanProcessor(exporter, schedule_delay_millis=SECONDS))
        self.tracer = (self.provider or NoOpTracerProvider()).get_tracer("conch")

    def close(self) -> None:
        """Send remaining spans."""
        if self.provider:
            self.provider.shutdown()

    @contextmanager
    def request(self, name: str, headers: Mapping[str, str]) -> Iterator[Span]:
        """Trace a client's request, as the current span, below nginx's span if it came from there."""
        if self.provider is None:
            yield INVALID_SPAN
            return
        with (
            self._nginx(W3C.extract(headers), taken(headers.get(TAKEN, ""), time.time_ns())) as parent,
            self.tracer.start_as_current_span(
                name, parent, SpanKind.SERVER, record_exception=False, set_status_on_exception=False
            ) as span,
        ):
            try:
                yield span
            except Exception as error:  # its text may be a client's
                span.set_status(Status(StatusCode.ERROR, type(error).__name__))
                raise

    @contextmanager
    def _nginx(self, parent: Context, times: tuple[int, int] | None) -> Iterator[Context]:
        """Make the span from the first byte that nginx read until the answer is handed to it."""
        if times is None:
            yield parent
            return
        span = self.tracer.start_span("nginx", parent, SpanKind.SERVER, start_time=times[0])
        span.add_event("handed on", timestamp=times[1])
        try:
            yield set_span_in_context(span, parent)
        finally:
            span.end()

    @contextmanager
    def call(self, model: str, headers: MutableMapping[str, str]) -> Iterator[Span]:
        """Trace a request to a Triton model, and return the headers that continue the trace, if there is one.
        It is not the current span: a stream ends in another context than it started in.
        """
        if not get_current_span().is_recording():
            yield INVALID_SPAN
            return
        span = self.tracer.start_span(f"kserve {model}", kind=SpanKind.CLIENT)
        W3C.inject(headers, set_span_in_context(span))
        try:
            yield span
        except Exception as error:
            span.set_status(Status(StatusCode.ERROR, type(error).__name__))
            raise
        finally:
            span.end()


def taken(value: str, now: int) -> tuple[int, int] | None:
    """Return when nginx started to read a request, and when it forwarded it, in ns since 1970, neither after
    `now`; None where it does not say. Its clock has milliseconds, and may be another host's.
    """
    if not (found := TIMES.fullmatch(value)):
        return None
    handed, held = int(found[1] + found[2]), int(found[3] + found[4])
    if held >= handed:
        return None
    return min((handed - held) * 1_000_000, now), min(handed * 1_000_000, now)


def trace_id(span: Span) -> str:
    """Return the id for logs and exemplars, 32 hexadecimal digits; empty where nothing is recorded."""
    return f"{span.get_span_context().trace_id:032x}" if span.is_recording() else ""
