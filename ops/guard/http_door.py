"""KServe v2 over HTTP in front of one tritonserver.

Allowed: metadata, configuration, health, statistics, inference. What a model cannot take is a 400 with a
sentence; where no instance can answer, a 503 with Retry-After. Everything else of Triton (repository, shared
memory, logging, tracing) is blocked.
"""

from __future__ import annotations

import asyncio
import re
import time
import uuid
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from typing import Any, TypeVar

import orjson
import structlog
from prometheus_client import CONTENT_TYPE_LATEST

from conch.names import AT_ONCE

from . import json_requests
from .contract import Contract, Refused
from .contracts import HANDED, Contracts
from .http_client import Answer, Lost
from .http_server import Request
from .json_requests import Checked
from .operate import Operator
from .relay import AWAY_SECONDS, NOBODY, Call, Relay, Target, Unavailable
from .suspicion import fingerprint

log = structlog.get_logger()
Result = TypeVar("Result")
MODEL = r"/v2/models/(?P<model>\w[\w.:-]*)(?:/versions/\w[\w.:-]*)?"
INFERENCE = re.compile(MODEL + "/(?P<how>infer|generate|generate_stream)", re.ASCII)
READING = re.compile(
    rf"/v2/?|/v2/health/(?:live|ready)|/v2/models/stats|{MODEL}(?:/(?:ready|config|stats))?/?"
)
OPERATION = re.compile("/guard/(?:status|restart)")
UNHEALTHY = re.compile(rb"[Ss]tub process [^\n]{0,200}is not healthy")
HOP_BY_HOP = {"connection", "keep-alive", "transfer-encoding", "content-length", "server", "date"}
LOST_ONCE = "x-conch-lost"  # nginx's: a guard was lost with this request in hand
UNREAD = "x-conch-unread"  # in a guard's answer to another: it has no server to give this to
CHANGED = "model {!r} has changed since the request came; send it again"
HEAD_BYTES = "inference-header-content-length"
# The engine's own models, which know a request by its id: a client that leaves is stopped there.
STOPPABLE = "tensorrt_llm"
FAULT = "internal error of the guard; its log has it"
UNKNOWN = "model {!r} is not served here; x-model-id selects the model, GET /v1/models lists them"
PASSED_ON = ("x-request-id", "traceparent", "tracestate")
SAMPLED = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f][13579bdf]")
OWN_ID = f".{uuid.uuid4().hex[:16]}-"  # unique among guards; the numbers after it are this one's
NUMBERS = count(1)


class ClientGone(Exception):
    """The client has closed its connection."""


@dataclass
class Reply:
    """An answer of a server; `body` is None while it is still arriving."""

    answer: Answer
    body: bytes | None = None


class HttpDoor:
    """Handlers of every allowed request."""

    def __init__(
        self, relay: Relay, contracts: Contracts, answered: Callable[[], None], operator: Operator
    ) -> None:
        self.relay, self.contracts, self.answered, self.operator = relay, contracts, answered, operator
        self.tasks: set[asyncio.Task[None]] = set()  # asyncio itself keeps no hold of tasks

    async def __call__(self, request: Request) -> None:
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
        return model if self.contracts.known(model) else "unknown"

    async def _guarded(self, request: Request, work: Awaitable[int]) -> int:
        """Run a handler; refusals and faults become answers."""
        try:
            return await work
        except Refused as refused:
            return _say(request, 400, str(refused))
        except Unavailable as unavailable:
            unread = [(UNREAD, "1")] if unavailable.unread and HANDED in request.headers else []
            return _say(request, 503, str(unavailable), unavailable.retry_after, unread)
        except ClientGone:
            return 499
        except Exception:
            log.exception("internal error of the guard", path=request.path)
            return 500 if request.answered else _say(request, 500, FAULT)

    async def _read(self, request: Request) -> int:
        """Answer metadata, health and statistics; the guard's own metrics; messages of other guards."""
        path = request.path
        if path == "/metrics" and request.method == "GET":
            page = self.relay.metrics.page(await self.operator.statistics()) + await self.operator.of_triton()
            return request.reply(200, [("content-type", CONTENT_TYPE_LATEST)], page)
        if path == "/guard/suspect" and request.method == "POST":
            self.relay.hear(request.headers["x-conch-fingerprint"], float(request.headers["x-conch-seconds"]))
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

        async def ask(target: Target) -> Reply:
            answer = await target.http.request(
                "GET", path, {} if target is self.relay.life else {HANDED: "1"}
            )
            return _took(Reply(answer, await answer.body()))

        reply = await self.relay.run(Call("", str, ask, handed=HANDED in request.headers, reads=True))
        return request.reply(reply.answer.status, _kept(reply.answer.headers), reply.body or b"")

    async def _operate(self, request: Request) -> int:
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

    async def _infer(self, request: Request, model: str, how: str) -> int:
        if request.method != "POST":
            return _say(request, 405, f"{request.path} takes POST only")
        headers = request.headers
        until = patience(headers)
        asked = self.contract(model, until, len(request.body), handed=HANDED in headers)
        contract = await self._unless_gone(request, asked)
        if contract is None:
            return _say(request, 404, UNKNOWN.format(model[:80]))
        checked = _checked(contract, how, headers, request.body)
        streaming = how == "generate_stream"
        passed = passed_on(headers)
        ask = sender(self, contract, request.path, checked, passed, streaming=streaming)
        call = calling(model, checked, ask, headers, until)
        stoppable = checked.id if OWN_ID in checked.id else ""
        reply = await self._unless_gone(request, self.relay.run(call), stoppable)
        if reply.body is None:
            return await self._stream(request, reply.answer, stoppable)
        # Triton says some errors of generate with a 200.
        status = (
            400 if reply.answer.status == 200 and reply.body.startswith(b'{"error":') else reply.answer.status
        )
        if status < 400:
            self.answered()
        return request.reply(status, _kept(reply.answer.headers), reply.body)

    async def contract(
        self, model: str, until: float = 0.0, size: int = 0, *, handed: bool = False
    ) -> Contract | None:
        """Return a model's contract; None if there is no such model. While the own server is away, it is the
        last reported one, which the sender compares. `until`, `size`: see Relay.back; `handed`: by another
        guard.

        Raises:
            Unavailable: nobody can be asked.
        """
        while True:
            if life := self.relay.life:
                with suppress(Lost):
                    return await self.contracts.get(life.http, model)
            if found := self.contracts.last(model):
                return found
            if handed:
                raise Unavailable(NOBODY, unread=True)
            for peer in self.relay.peers:
                with suppress(Lost):
                    return await self.contracts.elsewhere(peer.http, model)
            await self.relay.back(until, size)

    async def unchanged(self, target: Target, contract: Contract) -> bool:
        """Tell whether a server's model is still the one that a request was checked against.

        Raises:
            Lost: the server cannot be asked.
        """
        try:
            return await self.contracts.get(target.http, contract.name) == contract
        except Lost as lost:
            raise Lost(str(lost), sent=False) from lost

    async def _unless_gone(
        self, request: Request, work: Coroutine[Any, Any, Result], stoppable: str = ""
    ) -> Result:
        """Return the result of `work`; if the client disconnects before, cancel it and stop its request."""
        task = asyncio.ensure_future(work)
        request.gone.add_done_callback(lambda _: task.cancel())
        try:
            return await task
        except asyncio.CancelledError:
            if not request.gone.done():
                raise
            self.stop(stoppable)
            raise ClientGone from None

    async def _stream(self, request: Request, answer: Answer, stoppable: str) -> int:
        """Forward server-sent events as they arrive; a stream that breaks ends with an event that says so."""
        request.gone.add_done_callback(lambda _: answer.abort())
        request.begin(200, _kept(answer.headers))
        try:
            async for chunk in answer.chunks():
                await request.chunk(chunk)
            self.answered()
        except Lost:
            if request.gone.done():
                self.stop(stoppable)
                raise ClientGone from None
            text = orjson.dumps({"error": "the instance generating this answer was lost; retry the request"})
            await request.chunk(b"data: " + text + b"\n\n")
        request.end()
        return 200

    def stop(self, request_id: str) -> None:
        """Stop a request whose client has gone; over HTTP Triton does not notice.

        `stop` with the id of a running request is TensorRT-LLM's own way (triton_backend, README: "stop").
        """
        if request_id:
            task = asyncio.ensure_future(self._tell_stop(request_id))
            self.tasks.add(task)
            task.add_done_callback(self.tasks.discard)

    async def _tell_stop(self, request_id: str) -> None:
        one = {"datatype": "INT32", "shape": [1, 1], "data": [1]}
        rows = [{"name": name, **one} for name in ("input_ids", "input_lengths", "request_output_len")]
        rows.append({"name": "stop", "datatype": "BOOL", "shape": [1, 1], "data": [True]})
        body = orjson.dumps({"id": request_id, "inputs": rows})
        with suppress(Unavailable):
            if await self.contract(STOPPABLE) is None:
                return
        for target in (self.relay.life, *self.relay.peers):
            with suppress(Lost):
                if target:
                    path = f"/v2/models/{STOPPABLE}/infer"
                    await (await target.http.request("POST", path, {HANDED: "1"}, [body])).body()


def passed_on(headers: Mapping[str, str]) -> dict[str, str]:
    """Return the headers that Triton receives. Triton traces whatever has a traceparent, so that of an
    unsampled trace (the last flag is 0, https://www.w3.org/TR/trace-context/#sampled-flag) is dropped.
    """
    recorded = SAMPLED.fullmatch(headers.get("traceparent", "")) is not None
    names = PASSED_ON if recorded else PASSED_ON[:1]
    return {name: headers[name] for name in names if name in headers}


def _checked(contract: Contract, how: str, headers: Mapping[str, str], body: bytes) -> Checked:
    name = naming(headers.get("x-request-id"))
    if how != "infer":
        return json_requests.generate(contract, body, name)
    if contract.decoupled:
        raise Refused(
            f"model {contract.name!r} is decoupled; use generate_stream, or ModelStreamInfer over gRPC"
        )
    length = headers.get(HEAD_BYTES)
    if length is not None and not re.fullmatch(r"\d{1,12}", length):
        raise Refused("Inference-Header-Content-Length must be a number")
    return json_requests.infer(contract, body, None if length is None else int(length), name)


def calling(
    model: str,
    checked: Checked,
    ask: Callable[[Target], Awaitable[Reply]],
    headers: Mapping[str, str],
    until: float,
) -> Call[Reply]:
    """Make the relay's form of a checked request. `headers` are the client's, or another guard's; `until`:
    see Relay.back.
    """
    return Call(
        model,
        lambda: mark(model, checked),
        ask,
        handed=HANDED in headers,
        lost=LOST_ONCE in headers,
        until=until,
        size=sum(len(part) for part in checked.body),
    )


def patience(headers: Mapping[str, str]) -> float:
    """Return until when a request waits for a server's return (see Relay.back); one that another guard has
    forwarded does not wait.
    """
    return 0.0 if AT_ONCE in headers or HANDED in headers else time.monotonic() + AWAY_SECONDS


def sender(
    door: HttpDoor,
    contract: Contract,
    path: str,
    checked: Checked,
    passed: Mapping[str, str],
    *,
    streaming: bool = False,
) -> Callable[[Target], Awaitable[Reply]]:
    """Return a function that sends a checked request to a server or a guard. It raises Lost, also for an
    answer that says that a stub is unhealthy or that a guard has no server, and Unavailable where the own
    server's model is no longer the one that the request was checked against.
    """
    relay = door.relay
    sent = {
        "Content-Type": "application/octet-stream" if checked.head_bytes else "application/json",
        **passed,
    }
    if checked.head_bytes:
        sent[HEAD_BYTES] = str(checked.head_bytes)

    async def ask(target: Target) -> Reply:
        own = target is relay.life
        if own and not await door.unchanged(target, contract):
            raise Unavailable(CHANGED.format(contract.name))
        answer = await target.http.request("POST", path, sent if own else {**sent, HANDED: "1"}, checked.body)
        if streaming and answer.status == 200:
            return Reply(answer)
        body = await answer.body()
        if answer.status >= 400 and own and UNHEALTHY.search(body):
            relay.report_ill("an answer says that a Python stub is not healthy")
            raise Lost("a Python stub is not healthy")
        return _took(Reply(answer, body))

    return ask


def _took(reply: Reply) -> Reply:
    if UNREAD in dict(reply.answer.headers):
        raise Lost("another guard has no server for it", sent=False)
    return reply


def naming(header: str | None) -> Callable[[str], str]:
    """Return how a request's id becomes the one that the engine gets. `header` is x-request-id.

    A request can be stopped by an id of its own. A client's id, which several requests may share, is kept.
    One that is in the header, too, was made for this request, but a retry uses it again: the next try must
    not be stopped with the one before.
    """

    def name(given: str) -> str:
        if given and given != header:
            return given
        return f"{given}{OWN_ID}{next(NUMBERS)}"

    return name


def mark(model: str, checked: Checked) -> str:
    """Return the bytes that the request's fingerprint covers: all without its id, which comes first in the
    serialized request.
    """
    head, own = bytes(checked.body[0]), orjson.dumps(checked.id)
    return fingerprint(model, [head.replace(own, b"", 1), *checked.body[1:]])


def _kept(headers: list[tuple[str, str]]) -> list[tuple[str, str]]:
    return [(name, value) for name, value in headers if name not in HOP_BY_HOP]


def _say(
    request: Request,
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
