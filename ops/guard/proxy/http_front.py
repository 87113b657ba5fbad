"""KServe v2 over HTTP in front of one tritonserver.

Allowed: metadata, configuration, health, statistics, inference. What a model cannot take is a 400 with a
sentence; where no instance can answer, a 503 with Retry-After. Everything else of Triton (repository, shared
memory, logging, tracing) is blocked.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Coroutine, Mapping, Sequence
from typing import Any, TypeVar

import orjson
import structlog
from prometheus_client import CONTENT_TYPE_LATEST

from conch.http_client import HttpResponse, Lost

from ..checks import json_requests
from ..checks.contract import Contract, RequestRefused
from ..checks.json_requests import Checked
from ..life import RelayTarget
from ..operate import Operator
from .contracts import HANDED
from .http_server import HttpRequest
from .relay import Call, Unavailable
from .service import (
    FAULT,
    HEAD_BYTES,
    UNKNOWN,
    UNREAD,
    Reply,
    Service,
    naming,
    patience,
    took,
)

log = structlog.get_logger()
Result = TypeVar("Result")
MODEL = r"/v2/models/(?P<model>\w[\w.:-]*)(?:/versions/\w[\w.:-]*)?"
INFERENCE = re.compile(MODEL + "/(?P<how>infer|generate|generate_stream)", re.ASCII)
READING = re.compile(
    rf"/v2/?|/v2/health/(?:live|ready)|/v2/models/stats|{MODEL}(?:/(?:ready|config|stats))?/?"
)
OPERATION = re.compile("/guard/(?:status|restart)")
HOP_BY_HOP = {"connection", "keep-alive", "transfer-encoding", "content-length", "server", "date"}


class ClientGone(Exception):
    """The client has closed its connection."""


class HttpFront:
    """Handlers of every allowed request."""

    def __init__(self, service: Service, operator: Operator) -> None:
        self.service, self.operator = service, operator
        self.relay, self.answered = service.relay, service.answered

    async def __call__(self, request: HttpRequest) -> None:
        """Answer one request."""
        found = INFERENCE.fullmatch(request.path)
        if found is None:
            await self._guarded(request, self._read(request))
            return
        started = time.perf_counter()
        model = found["model"]
        status = await self._guarded(request, self._infer(request, model, found["how"]))
        if status == 400:
            self.relay.metrics.refused.labels(self._known(model), "request").inc()
        self.relay.metrics.note(self._known(model), "http", str(status), time.perf_counter() - started)

    def _known(self, model: str) -> str:
        """Return a model's name for metrics: all unknown names share one."""
        return model if self.service.contracts.known(model) else "unknown"

    async def _guarded(self, request: HttpRequest, work: Awaitable[int]) -> int:
        """Run a handler; refusals and faults become answers."""
        try:
            return await work
        except RequestRefused as refused:
            return _say(request, 400, str(refused))
        except Unavailable as unavailable:
            unread = [(UNREAD, "1")] if unavailable.unread and HANDED in request.headers else []
            return _say(request, 503, str(unavailable), unavailable.retry_after, unread)
        except ClientGone:
            return 499
        except Exception:
            log.exception("internal error of the guard", path=request.path)
            return 500 if request.answered else _say(request, 500, FAULT)

    async def _read(self, request: HttpRequest) -> int:
        """Answer metadata, health and statistics; the guard's own metrics; messages of other guards."""
        path = request.path
        if path == "/metrics" and request.method == "GET":
            page = self.relay.metrics.page(await self.operator.statistics()) + await self.operator.of_triton()
            return request.reply(200, [("content-type", CONTENT_TYPE_LATEST)], page)
        if path == "/guard/suspect" and request.method == "POST":
            self.relay.quarantine(
                request.headers["x-conch-fingerprint"], float(request.headers["x-conch-seconds"])
            )
            return request.reply(204)
        if OPERATION.fullmatch(path):
            return await self._operate(request)
        if not READING.fullmatch(path):
            return _say(
                request,
                403,
                "closed here: only inference, metadata, statistics and health of Triton are open",
            )
        if request.method != "GET":
            return _say(request, 405, f"{path} takes GET only")

        async def ask(target: RelayTarget) -> Reply:
            answer = await target.http.request(
                "GET", path, {} if target is self.relay.life else {HANDED: "1"}
            )
            return took(Reply(answer, await answer.body()))

        reply = await self.relay.run(Call("", str, ask, handed=HANDED in request.headers, reads=True))
        return request.reply(reply.answer.status, _kept(reply.answer.headers), reply.body or b"")

    async def _operate(self, request: HttpRequest) -> int:
        """Answer what only the gateway may ask."""
        if not self.operator.allowed(request.headers):
            return _say(
                request, 403, "only the gateway may use this path, with the deployment's internal key"
            )
        if (request.method, request.path) == ("POST", "/guard/restart"):
            self.operator.restart()
            return request.reply(202)
        if (request.method, request.path) == ("GET", "/guard/status"):
            body = orjson.dumps(await self.operator.status())
            return request.reply(200, [("content-type", "application/json")], body)
        return _say(request, 405, "/guard/status takes GET only, /guard/restart POST only")

    async def _infer(self, request: HttpRequest, model: str, how: str) -> int:
        if request.method != "POST":
            return _say(request, 405, f"{request.path} takes POST only")
        headers = request.headers
        until = patience(headers)
        asked = self.service.contract(model, until, len(request.body), handed=HANDED in headers)
        contract = await self._unless_gone(request, asked)
        if contract is None:
            return _say(request, 404, UNKNOWN.format(model[:80]))
        checked = _checked(contract, how, headers, request.body)
        streaming = how == "generate_stream"
        running = self.service.run(contract, request.path, checked, headers, until, streaming=streaming)
        reply = await self._unless_gone(request, running, checked.id)
        if reply.body is None:
            return await self._stream(request, reply.answer, checked.id)
        # Triton says some errors of generate with a 200.
        status = (
            400 if reply.answer.status == 200 and reply.body.startswith(b'{"error":') else reply.answer.status
        )
        if status < 400:
            self.answered()
        return request.reply(status, _kept(reply.answer.headers), reply.body)

    async def _unless_gone(
        self, request: HttpRequest, work: Coroutine[Any, Any, Result], request_id: str = ""
    ) -> Result:
        """Return the result of `work`; if the client disconnects before, cancel it and stop its request."""
        task = asyncio.ensure_future(work)
        request.gone.add_done_callback(lambda _: task.cancel())
        try:
            return await task
        except asyncio.CancelledError:
            if not request.gone.done():
                raise
            self.service.stop(request_id)
            raise ClientGone from None

    async def _stream(self, request: HttpRequest, answer: HttpResponse, request_id: str) -> int:
        """Forward server-sent events as they arrive; a stream that breaks ends with an event that says so."""
        request.gone.add_done_callback(lambda _: answer.abort())
        request.begin(200, _kept(answer.headers))
        try:
            async for chunk in answer.chunks():
                if not chunk.startswith(b'data: {"error"'):
                    self.answered()
                await request.chunk(chunk)
        except Lost:
            if request.gone.done():
                self.service.stop(request_id)
                raise ClientGone from None
            text = orjson.dumps({"error": "the instance generating this answer was lost; retry the request"})
            await request.chunk(b"data: " + text + b"\n\n")
        request.end()
        return 200


def _checked(contract: Contract, how: str, headers: Mapping[str, str], body: bytes) -> Checked:
    name = naming(headers.get("x-request-id"))
    if how != "infer":
        return json_requests.generate(contract, body, name)
    if contract.decoupled:
        raise RequestRefused(
            f"model {contract.name!r} is decoupled; use generate_stream, or ModelStreamInfer over gRPC"
        )
    length = headers.get(HEAD_BYTES)
    if length is not None and not re.fullmatch(r"\d{1,12}", length):
        raise RequestRefused("Inference-Header-Content-Length must be a number")
    return json_requests.infer(contract, body, None if length is None else int(length), name)


def _kept(headers: list[tuple[str, str]]) -> list[tuple[str, str]]:
    return [(name, value) for name, value in headers if name not in HOP_BY_HOP]


def _say(
    request: HttpRequest,
    status: int,
    message: str,
    retry_after: int = 0,
    more: Sequence[tuple[str, str]] = (),
) -> int:
    headers = [
        ("content-type", "application/json"),
        *([("retry-after", str(retry_after))] if retry_after else []),
        *more,
    ]
    return request.reply(status, headers, orjson.dumps({"error": message}))
