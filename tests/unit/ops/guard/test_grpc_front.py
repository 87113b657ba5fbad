"""The guard's gRPC listener when the guard itself is at fault, or when its server goes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import grpc
import grpc.aio
import pytest
from tritonclient.grpc import service_pb2

from ops.guard.checks.contract import Contract
from ops.guard.metrics import GuardMetrics
from ops.guard.proxy.grpc_front import SERVICE, GrpcFront
from ops.guard.proxy.relay import Life, Relay

REQUEST = service_pb2.ModelInferRequest(model_name="m").SerializeToString()


@asynccontextmanager
async def listening(*handlers: grpc.GenericRpcHandler) -> AsyncIterator[grpc.aio.Channel]:
    server = grpc.aio.server()
    server.add_generic_rpc_handlers(handlers)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        yield channel
    await server.stop(0)


class Triton(grpc.GenericRpcHandler):  # type: ignore[misc]
    """A server whose streams answer each request with itself."""

    def service(self, details: Any) -> Any:
        assert details.method == f"{SERVICE}ModelStreamInfer"

        async def echo(requests: AsyncIterator[bytes], _: Any) -> AsyncIterator[bytes]:
            async for request in requests:
                yield request

        return grpc.stream_stream_rpc_method_handler(echo)


def front(contract: Callable[..., Awaitable[Contract | None]], life: Life) -> GrpcFront:
    relay = Relay([], GuardMetrics())
    relay.begin(life)
    parts: Any = SimpleNamespace(relay=relay, answered=lambda: None, contract=contract, stop=lambda _: None)
    return GrpcFront(parts)


async def broken(*_: Any, **_handed: bool) -> None:
    raise RuntimeError("an inner matter")


async def test_a_fault_of_the_guard_is_said_and_ends_the_call() -> None:
    """Unary or a stream: INTERNAL, without inner matters; a stream does not wait for ever."""
    async with listening(Triton()) as triton, listening(front(broken, Life(None, triton))) as channel:  # type: ignore[arg-type]
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await channel.unary_unary(f"{SERVICE}ModelInfer")(REQUEST)
        assert caught.value.code() == grpc.StatusCode.INTERNAL
        assert "an inner matter" not in str(caught.value.details())
        call = channel.stream_stream(f"{SERVICE}ModelStreamInfer")()
        await call.write(REQUEST)
        assert await asyncio.wait_for(call.code(), 5) == grpc.StatusCode.INTERNAL
        assert "an inner matter" not in await call.details()


async def test_a_stream_whose_server_is_replaced_is_told() -> None:
    """Its channel is closed: UNAVAILABLE, also while the client has not asked for anything yet."""

    async def nobody(*_: Any, **_handed: bool) -> None:
        return None

    async with listening(Triton()) as triton, listening(front(nobody, Life(None, triton))) as channel:  # type: ignore[arg-type]
        call = channel.stream_stream(f"{SERVICE}ModelStreamInfer")()
        await call.write(REQUEST)
        answer = service_pb2.ModelStreamInferResponse.FromString(await call.read())
        assert "not served here" in answer.error_message
        await triton.close()
        assert await asyncio.wait_for(call.code(), 5) == grpc.StatusCode.UNAVAILABLE
