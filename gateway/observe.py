"""Around every HTTP request: its id, metrics, one log line."""

from __future__ import annotations

import logging
import re
import time
import uuid

import structlog
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

log = structlog.get_logger()

# Asked every few seconds, or a dozen at once.
QUIET = ("/health", "/console/{name}", "/console/api/state", "/console/api/history")
SAFE_ID = re.compile(r"[A-Za-z0-9_.:-]{1,128}")


def log_json_lines() -> None:
    """One JSON object a line, INFO and above."""
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


class Observe:
    """ASGI middleware. `x-request-id` is taken over if it is plain, made otherwise, and answered."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        if scope["type"] not in ("http", "websocket"):
            await self.app(scope, receive, send)
            return
        given = Headers(scope=scope).get("x-request-id", "")
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

        try:
            await self.app(scope, receive, observed)
        finally:
            self._note(scope, status, time.monotonic() - started)

    @staticmethod
    def _note(scope: Scope, status: int, seconds: float) -> None:
        path = getattr(scope.get("route"), "path", "other")
        metrics = scope["state"]["services"].metrics
        model = scope["state"].get("model", "")
        metrics.requests.labels(path, status, model).inc()
        if scope["type"] == "http":  # a live session's length is no latency
            metrics.latency.labels(path, model).observe(seconds)
        if not path.startswith(QUIET):
            log.info(
                "request",
                method=scope.get("method", scope["type"]),
                path=path,
                model=model,
                status=status,
                seconds=round(seconds, 4),
            )
