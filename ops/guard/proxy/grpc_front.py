"""KServe v2 over gRPC in front of one tritonserver.

A unary inference is forwarded to the server over HTTP, whose client costs a fifth of gRPC's
(docs/benchmarks/guard.md); streams and everything else are passed through. INVALID_ARGUMENT is returned for
what a model cannot take, UNAVAILABLE where no instance can, as Triton does; inside a stream a refusal is a
response with error_message, which leaves the stream open.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import grpc
import grpc.aio
import structlog
from google.protobuf.message import DecodeError
from tritonclient.grpc import service_pb2

from conch.http_client import Lost

from ..checks.contract import Contract, RequestRefused
from ..checks.grpc_requests import check, error_message, response
from ..life import Life, RelayTarget
from .contracts import HANDED
from .relay import NOBODY, Call, Unavailable
from .service import FAULT, HEAD_BYTES, UNKNOWN, UNREAD, Service, naming, passed_on, patience

log = structlog.get_logger()
SERVICE = "/inference.GRPCInferenceService/"
READING = {
    SERVICE + name
    for name in (
        "ServerLive",
        "ServerReady",
        "ModelReady",
        "ServerMetadata",
        "ModelMetadata",
        "ModelConfig",
        "ModelStatistics",
    )
}
READING.add("/grpc.health.v1.Health/Check")
CLOSED = "closed here: only inference, metadata, statistics and health of Triton are open"
LOST = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)
ERROR_MESSAGE = b"\x0a"  # the tag of that field, which comes first, of ModelStreamInferResponse
MODEL_NAME = re.compile(r"\w[\w.:-]{0,255}", re.ASCII)
STATUS = {
    400: grpc.StatusCode.INVALID_ARGUMENT,
    404: grpc.StatusCode.NOT_FOUND,
    501: grpc.StatusCode.UNIMPLEMENTED,
    503: grpc.StatusCode.UNAVAILABLE,
}


def options(most_bytes: int) -> list[tuple[str, int]]:
    """Return options of channels and servers: no limit for answers, `most_bytes` for requests."""
    return [
        ("grpc.max_receive_message_length", most_bytes),
        ("grpc.max_send_message_length", -1),
        ("grpc.use_local_subchannel_pool", 1),
    ]


def connect(address: str) -> grpc.aio.Channel:
    """Open a channel to a tritonserver or to another guard, without a limit for answers."""
    return grpc.aio.insecure_channel(
        address,
        options=[
            *options(-1),
            ("grpc.max_reconnect_backoff_ms", 500),
            ("grpc.initial_reconnect_backoff_ms", 100),
        ],
    )


class GrpcFront(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Handlers of every allowed method."""

    def __init__(self, service: Service) -> None:
        self.requests, self.relay, self.answered = service, service.relay, service.answered
        self.faces: WeakKeyDictionary[Life, dict[str, str | None]] = WeakKeyDictionary()

    def service(self, details: Any) -> Any:
        """Return grpc's handler of a method."""
        method = details.method
        if method == SERVICE + "ModelInfer":
            return grpc.unary_unary_rpc_method_handler(self._infer)
        if method == SERVICE + "ModelStreamInfer":
            return grpc.stream_stream_rpc_method_handler(self._stream)
        if method in READING:
            return grpc.unary_unary_rpc_method_handler(partial(self._read, method))
        return grpc.unary_unary_rpc_method_handler(_closed)

    async def _read(self, method: str, request: bytes, context: Any) -> bytes:
        """Answer metadata, configuration, statistics, health."""
        async with _statuses(context):
            ask = self._ask(method, request, context)
            return await self.relay.run(Call("", str, ask, HANDED in _given(context), reads=True))
        raise AssertionError  # abort raises

    async def _infer(self, data: bytes, context: Any) -> bytes:
        started, model, code = time.perf_counter(), "unknown", "failed"
        async with _statuses(context):
            try:
                request, metadata = _parsed(data), _given(context)
                until = patience(metadata)
                handed = HANDED in metadata
                contract = await self._contract(request.model_name, until, len(data), handed=handed)
                model = contract.name
                answer = await self._answer(request, contract, context, until)
                self.answered()
                code = "ok"
                return answer
            except RequestRefused:
                self.relay.metrics.refused.labels(model, "request").inc()
                raise
            finally:
                self.relay.metrics.note(model, "grpc", code, time.perf_counter() - started)
        raise AssertionError  # abort raises

    async def _answer(
        self, request: service_pb2.ModelInferRequest, contract: Contract, context: Any, until: float
    ) -> bytes:
        if contract.decoupled:
            raise RequestRefused(f"model {contract.name!r} is decoupled; use ModelStreamInfer")
        if request.model_version and not request.model_version.isdecimal():  # it becomes part of a path
            raise RequestRefused("model_version must be a number")
        metadata = _given(context)
        checked = check(contract, request, naming(metadata.get("x-request-id")))
        version = f"/versions/{request.model_version}" if request.model_version else ""
        path = f"/v2/models/{contract.name}{version}/infer"
        try:
            reply = await self.requests.run(contract, path, checked, metadata, until)
        except asyncio.CancelledError:
            self.requests.stop(checked.id)
            raise
        if reply.answer.status != 200:
            await context.abort(
                STATUS.get(reply.answer.status, grpc.StatusCode.INTERNAL), error_message(reply.body or b"")
            )
        return response(reply.body or b"", dict(reply.answer.headers).get(HEAD_BYTES), request.id)

    async def _contract(
        self, model: str, until: float = 0.0, size: int = 0, *, handed: bool = False
    ) -> Contract:
        known = MODEL_NAME.fullmatch(model)
        found = await self.requests.contract(model, until, size, handed=handed) if known else None
        if found is None:
            raise RequestRefused(UNKNOWN.format(model[:80]))
        return found

    def _ask(self, method: str, data: bytes, context: Any) -> Callable[[RelayTarget], Any]:
        async def ask(target: RelayTarget) -> bytes:
            own = target is self.relay.life
            passed = _metadata(_given(context), handed=not own)
            try:
                answer: bytes = await target.grpc.unary_unary(method)(
                    data, metadata=passed, timeout=context.time_remaining()
                )
            except grpc.aio.AioRpcError as error:
                if UNREAD in dict(error.trailing_metadata() or ()):
                    raise Lost("another guard has no server for it", sent=False) from error
                if error.code() in LOST and _broken(error):
                    raise Lost(
                        error.details() or "the connection was lost",
                        sent="connect" not in (error.details() or ""),
                    ) from error
                raise
            return answer

        return ask

    async def _stream(self, requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        """Forward a stream of requests. It stays with the server that it started with, and ends with that
        server.
        """
        async with _statuses(context):
            target = await self._server(_given(context))
            life = self.relay.life if target is self.relay.life else None
            call = target.grpc.stream_stream(SERVICE + "ModelStreamInfer")(
                metadata=_metadata(_given(context), handed=life is None)
            )
            flight: Call[Any] = Call("stream", lambda: "", lambda _: None)  # type: ignore[arg-type,return-value]
            if life:
                life.flights.add(flight)
            try:
                async for message in Exchange(requests, call, self._judged).messages():
                    if not message.startswith(ERROR_MESSAGE):
                        self.answered()
                    yield message
            finally:
                call.cancel()
                if life:
                    life.flights.discard(flight)

    async def _server(self, metadata: Mapping[str, str]) -> RelayTarget:
        """Choose where a new stream goes: to the own server (waiting for its return where there is no other
        instance), or to another instance.

        Raises:
            Unavailable: there is none.
        """
        if self.relay.free is None and HANDED not in metadata:
            if self.relay.peers:
                return self.relay.peers[0]
            await self.relay.back(patience(metadata), 0)
        if life := self.relay.free:
            return life
        raise Unavailable(NOBODY)

    async def _judged(self, data: bytes) -> tuple[bytes, bool]:
        """Return a stream's request in the form to forward, and True; or the stream's answer where its model
        cannot take it, and False.

        A model that has a decoupled variant is streamed from that one: upstream's clients use one name for
        both.
        """
        try:
            request = _parsed(data)
            contract = await self._contract(request.model_name)
            check(contract, request, str)
            if not contract.decoupled and (face := await self._face(contract.name)):
                request.model_name = face
                return bytes(request.SerializeToString()), True
        except (RequestRefused, Unavailable) as refused:
            self.relay.metrics.refused.labels("unknown", "request").inc()
            return bytes(
                service_pb2.ModelStreamInferResponse(error_message=str(refused)).SerializeToString()
            ), False
        return data, True

    async def _face(self, model: str) -> str | None:
        """Return the name of a model's decoupled variant, if it has one."""
        known = self.faces.setdefault(self.relay.life, {}) if self.relay.life else {}
        if model not in known:
            found = await self.requests.contract(f"{model}_stream")
            known[model] = f"{model}_stream" if found and found.decoupled else None
        return known[model]


class Exchange:
    """A stream in both directions: requests to a server, its answers, and refusals in between."""

    def __init__(self, requests: AsyncIterator[bytes], call: Any, judged: Callable[[bytes], Any]) -> None:
        self.requests, self.call, self.judged = requests, call, judged
        self.answers: asyncio.Queue[bytes | Exception | None] = asyncio.Queue(16)
        self.leaving = False

    async def messages(self) -> AsyncIterator[bytes]:
        """Yield what the client gets.

        Raises:
            grpc.aio.AioRpcError, Lost: the server ended the stream, or died.
            Exception: a fault of the guard.
        """
        tasks = [asyncio.ensure_future(self._send()), asyncio.ensure_future(self._receive())]
        tasks[0].add_done_callback(lambda done: done.cancelled() or done.exception())
        try:
            while (answer := await self.answers.get()) is not None:
                if isinstance(answer, Exception):
                    raise answer
                yield answer
        finally:
            self.leaving = True
            for task in tasks:
                task.cancel()

    async def _send(self) -> None:
        async for data in self.requests:
            try:
                message, passes = await self.judged(data)
            except Exception as fault:  # noqa: BLE001  # a client that waits for answers would wait for ever
                await self.answers.put(fault)
                return
            await (self.call.write(message) if passes else self.answers.put(message))
        await self.call.done_writing()

    async def _receive(self) -> None:
        end: Exception | None = None
        try:
            async for data in self.call:
                await self.answers.put(data)
        except grpc.aio.AioRpcError as error:
            end = error
        except asyncio.CancelledError:  # of the call: its channel is closed when its server is lost
            if self.leaving:
                raise
            end = Lost("the instance that processed this stream was lost; retry its requests", begun=True)
        await self.answers.put(end)


@asynccontextmanager
async def _statuses(context: Any) -> AsyncIterator[None]:
    """Turn exceptions into statuses; a fault of the guard reveals no details."""
    try:
        yield
    except grpc.aio.AbortError:
        raise
    except RequestRefused as refused:
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(refused))
    except (Unavailable, Lost) as gone:
        unread = isinstance(gone, Unavailable) and gone.unread
        await context.abort(grpc.StatusCode.UNAVAILABLE, str(gone), ((UNREAD, "1"),) if unread else ())
    except grpc.aio.AioRpcError as error:
        await context.abort(error.code(), error.details() or "", error.trailing_metadata() or ())
    except Exception:
        log.exception("internal error of the guard")
        await context.abort(grpc.StatusCode.INTERNAL, FAULT)


def _parsed(data: bytes) -> service_pb2.ModelInferRequest:
    try:
        return service_pb2.ModelInferRequest.FromString(data)
    except DecodeError:
        raise RequestRefused("the message is not a ModelInferRequest") from None


def _given(context: Any) -> dict[str, str]:
    """Return a call's metadata."""
    return dict(context.invocation_metadata() or ())


def _metadata(metadata: Mapping[str, str], *, handed: bool) -> list[tuple[str, str]]:
    kept = passed_on(metadata) | {name: metadata[name] for name in ("triton_grpc_error",) if name in metadata}
    return [*kept.items(), *([(HANDED, "1")] if handed else [])]


def _broken(error: grpc.aio.AioRpcError) -> bool:
    """Tell whether the connection failed; Triton itself returns UNAVAILABLE for a full queue, too."""
    details = (error.details() or "").lower()
    return error.code() == grpc.StatusCode.CANCELLED or any(
        word in details
        for word in ("socket", "connect", "reset", "goaway", "closed", "stopping", "broken pipe", "transport")
    )


async def _closed(_: bytes, context: Any) -> bytes:
    await context.abort(grpc.StatusCode.PERMISSION_DENIED, CLOSED)
    raise AssertionError
