"""Give every HTTP request an id, metrics, and one log line."""

from __future__ import annotations

import logging
import re
import time
import uuid
from contextlib import nullcontext

import structlog
from opentelemetry.trace import INVALID_SPAN, Span, StatusCode
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .tracing import Traces, trace_id

log = structlog.get_logger()

# Asked every few seconds, or a dozen at once.
QUIET = ("/health", "/console/{name}", "/console/api/state", "/console/api/history")
UNTRACED = ("/health", "/console", "/metrics", "/auth")
SAFE_ID = re.compile(r"[A-Za-z0-9_.:-]{1,128}")


def log_json_lines() -> None:
    """Log one JSON object per line, INFO and above."""
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
    )


def describe(span: Span, scope: Scope, status: int, request_id: str) -> None:
    """Describe a finished request (https://opentelemetry.io/docs/specs/semconv/http/http-spans/)."""
    path = getattr(scope.get("route"), "path", "other")
    method = scope.get("method", "WebSocket")
    span.update_name(f"{method} {path}")
    span.set_attributes(
        {
            "http.request.method": method,
            "http.route": path,
            "http.response.status_code": status,
            "conch.model": scope["state"].get("model", ""),
            "conch.request_id": request_id,
        }
    )
    if status >= 500:
        span.set_status(StatusCode.ERROR)


class Observe:
    """ASGI middleware. A plain `x-request-id` is kept, otherwise one is made; the answer has it."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self.app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        given = headers.get("x-request-id", "")
        request_id = scope["state"]["request_id"] = given if SAFE_ID.fullmatch(given) else uuid.uuid4().hex
        structlog.contextvars.bind_contextvars(request_id=request_id)
        started, status = time.monotonic(), 500

        async def observed(message: Message) -> None:
            nonlocal status
            if message["type"] == "websocket.accept":
                status = 101
            elif message["type"] in ("http.response.start", "websocket.http.response.start"):
                status = message["status"]
                MutableHeaders(scope=message)["x-request-id"] = request_id
            await send(message)

        traces: Traces = scope["state"]["services"].traces
        quiet = scope["path"].startswith(UNTRACED)
        with nullcontext(INVALID_SPAN) if quiet else traces.request(scope["type"], headers) as span:
            if span.is_recording():
                structlog.contextvars.bind_contextvars(trace_id=trace_id(span))
            try:
                await self.app(scope, receive, observed)
            finally:
                self._note(scope, status, time.monotonic() - started, trace_id(span))
                if span.is_recording():
                    describe(span, scope, status, request_id)

    @staticmethod
    def _note(scope: Scope, status: int, seconds: float, trace: str) -> None:
        path = getattr(scope.get("route"), "path", "other")
        services = scope["state"]["services"]
        model = scope["state"].get("model", "")
        services.metrics.requests.labels(path, status, model).inc()
        if scope["type"] == "http":  # a live session's length is no latency
            exemplar = {"trace_id": trace} if trace else None
            services.metrics.latency.labels(path, model).observe(seconds, exemplar)
            services.history.note(path, status, seconds)
        if not path.startswith(QUIET):
            log.info(
                "request",
                method=scope.get("method", scope["type"]),
                path=path,
                model=model,
                status=status,
                seconds=round(seconds, 4),
            )
