"""A collector of traces: OTLP over HTTP as its specification says it, on the published protobufs, and no code
of the product (https://opentelemetry.io/docs/specs/otlp/#otlphttp).

It takes what a real one takes, protobuf and JSON, compressed or not, and refuses what breaks the protocol:
ids of the wrong size or of zeros, spans without a name, or that end before they begin.
"""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from google.protobuf import json_format
from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.trace.v1.trace_pb2 import Status

from .http_server import Handler, answering


@dataclass(frozen=True)
class Span:
    """One span as it was told; times in ns, ids in hexadecimal digits."""

    service: str
    name: str
    trace: str
    id: str
    parent: str
    begin: int
    end: int
    attributes: dict[str, Any]
    events: tuple[str, ...]
    failed: bool


@dataclass
class Collector:
    """What has come, and what was wrong with what was refused."""

    url: str = ""
    spans: list[Span] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)

    def of(self, trace: str) -> list[Span]:
        return [span for span in list(self.spans) if span.trace == trace]


def _ids(value: Any) -> Any:
    """OTLP's JSON writes ids in hexadecimal digits, where protobuf's own mapping has base64."""
    if isinstance(value, list):
        return [_ids(one) for one in value]
    if not isinstance(value, dict):
        return value
    names = ("traceId", "spanId", "parentSpanId")
    return {
        key: base64.b64encode(bytes.fromhex(one)).decode() if key in names else _ids(one)
        for key, one in value.items()
    }


def _parsed(kind: str, body: bytes) -> ExportTraceServiceRequest:
    if kind == "application/json":
        return json_format.ParseDict(_ids(json.loads(body)), ExportTraceServiceRequest())
    if kind == "application/x-protobuf":
        return ExportTraceServiceRequest.FromString(body)
    raise ValueError(f"content type {kind!r}")


def _value(found: Any) -> Any:
    return getattr(found, kind) if (kind := found.WhichOneof("value")) else None


def _spans(request: ExportTraceServiceRequest) -> Iterator[Span]:
    for group in request.resource_spans:
        resource = {row.key: _value(row.value) for row in group.resource.attributes}
        for span in (span for scope in group.scope_spans for span in scope.spans):
            if len(span.trace_id) != 16 or not any(span.trace_id):
                raise ValueError(f"trace_id {span.trace_id!r}")
            if len(span.span_id) != 8 or not any(span.span_id) or len(span.parent_span_id) not in (0, 8):
                raise ValueError(f"span_id {span.span_id!r}, parent_span_id {span.parent_span_id!r}")
            if not span.name or not 0 < span.start_time_unix_nano <= span.end_time_unix_nano:
                raise ValueError(f"span {span.name!r}: name or times")
            yield Span(
                str(resource.get("service.name", "")),
                span.name,
                span.trace_id.hex(),
                span.span_id.hex(),
                span.parent_span_id.hex().strip("0") and span.parent_span_id.hex(),
                span.start_time_unix_nano,
                span.end_time_unix_nano,
                {row.key: _value(row.value) for row in span.attributes},
                tuple(event.name for event in span.events),
                span.status.code == Status.STATUS_CODE_ERROR,
            )


@contextmanager
def collector() -> Iterator[Collector]:
    """A running one on a port of its own."""
    found = Collector()

    class Collecting(Handler):
        def answer(self, body: bytes) -> None:
            status, kind = 200, self.headers.get_content_type()
            try:
                if self.path != "/v1/traces":
                    raise ValueError(self.path)
                if self.headers.get("content-encoding") == "gzip":
                    body = gzip.decompress(body)
                found.spans += list(_spans(_parsed(kind, body)))
            except (ValueError, DecodeError, json_format.ParseError) as error:
                found.refused.append(repr(error))
                status = 400
            empty = ExportTraceServiceResponse().SerializeToString()
            self.send(status, kind, "{}" if kind == "application/json" else empty)

    with answering(Collecting) as server:
        found.url = server.url
        yield found
