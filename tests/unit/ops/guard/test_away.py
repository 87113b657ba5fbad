"""Listeners of guards whose servers are away, over real sockets; the servers answer what a test says."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import Any

import httpx
import orjson

from conch.http_client import HttpClient
from conch.names import AT_ONCE
from ops.guard.metrics import GuardMetrics
from ops.guard.proxy.contracts import Contracts
from ops.guard.proxy.http_front import HANDED, UNREAD, HttpFront
from ops.guard.proxy.http_server import HttpRequest
from ops.guard.proxy.relay import Death, Life, Relay
from ops.guard.proxy.service import Service

from .test_http import serving

PATH = "/v2/models/m/infer"
BODY = {"inputs": [{"name": "A", "datatype": "INT32", "shape": [1], "data": [1]}]}
TIMEOUT = 10


class Server:
    """A tritonserver with models, whose input has `size` elements."""

    def __init__(self, name: str, size: int = 1) -> None:
        self.name, self.size = name, size

    async def __call__(self, request: HttpRequest) -> None:
        config = {
            "name": request.path.split("/")[3],
            "input": [{"name": "A", "data_type": "TYPE_INT32", "dims": [self.size]}],
            "output": [{"name": "B", "data_type": "TYPE_INT32", "dims": [1]}],
        }
        request.reply(200, [], orjson.dumps(config if request.path.endswith("/config") else self.name))


class Peer:
    """Another guard, as a relay asks it."""

    def __init__(self, address: str) -> None:
        self.http, self.grpc = HttpClient(address), None


class Guards:
    """Several of one pool; each begins without a server."""

    def __init__(self, stack: AsyncExitStack) -> None:
        self.stack, self.relays, self.addresses = stack, list[Relay](), list[str]()

    async def add(self) -> None:
        relay = Relay([], GuardMetrics())
        unused: Any = None
        front = HttpFront(Service(relay, Contracts(), lambda: None), unused)
        self.relays.append(relay)
        self.addresses.append(await self.stack.enter_async_context(serving(front)))

    def introduce(self) -> None:
        for i, relay in enumerate(self.relays):
            relay.peers = [Peer(address) for j, address in enumerate(self.addresses) if j != i]

    async def live(self, index: int, server: Server) -> None:
        address = await self.stack.enter_async_context(serving(server))
        self.relays[index].begin(Life(HttpClient(address), None))


async def ask(address: str, path: str = PATH, **headers: str) -> httpx.Response:
    async with httpx.AsyncClient(base_url=f"http://{address}", timeout=TIMEOUT, headers=headers) as client:
        return await client.post(path, json=BODY)


async def test_a_guard_without_a_server_is_passed_over() -> None:
    """What it tells another guard is not what the client receives."""
    async with AsyncExitStack() as stack:
        guards = Guards(stack)
        for _ in range(3):
            await guards.add()
        guards.introduce()
        await guards.live(2, Server("two"))
        handed = await ask(guards.addresses[1], **{HANDED: "1"})
        assert (handed.status_code, handed.headers[UNREAD]) == (503, "1")
        for _ in range(4):  # whichever is asked first
            answer = await ask(guards.addresses[0])
            assert (answer.status_code, answer.json()) == (200, "two")
        health = f"http://{guards.addresses[0]}/v2/health/ready"
        async with httpx.AsyncClient(timeout=TIMEOUT) as client:
            assert [(await client.get(health)).status_code for _ in range(4)] == [200] * 4


async def test_a_request_waits_for_the_only_server() -> None:
    """Unless it says that it does not; and not for one that has never been there."""
    async with AsyncExitStack() as stack:
        guards = Guards(stack)
        await guards.add()
        relay, address = guards.relays[0], guards.addresses[0]
        never = await ask(address)
        assert (never.status_code, never.headers["retry-after"]) == (503, "2")
        assert UNREAD not in never.headers
        await guards.live(0, Server("one"))
        assert (await ask(address)).json() == "one"
        relay.returns = lambda: True
        relay.end(Death("killed", outside=True))
        assert (await ask(address, **{AT_ONCE: "1"})).status_code == 503
        async with httpx.AsyncClient(timeout=TIMEOUT) as client:
            assert (await client.get(f"http://{address}/v2/health/ready")).status_code == 503
            wrong = await client.post(f"http://{address}{PATH}", json={"inputs": []})
            assert wrong.status_code == 400, "what no server could take is said at once"
        paths = (PATH, "/v2/models/k/infer")  # nobody has asked for the second yet
        waiting = [asyncio.ensure_future(ask(address, path=path)) for path in paths]
        while relay.waiting < 2:
            await asyncio.sleep(0.01)
        leaving = asyncio.ensure_future(ask(address, path="/v2/models/n/infer"))
        while relay.waiting < 3:
            await asyncio.sleep(0.01)
        leaving.cancel()
        while relay.waiting > 2:
            await asyncio.sleep(0.01)
        assert not any(one.done() for one in waiting)
        await guards.live(0, Server("another"))
        assert [answer.json() for answer in await asyncio.gather(*waiting)] == ["another"] * 2


async def test_a_request_is_not_given_to_a_model_that_has_changed() -> None:
    """It was checked for the one before."""
    async with AsyncExitStack() as stack:
        guards = Guards(stack)
        await guards.add()
        relay, address = guards.relays[0], guards.addresses[0]
        await guards.live(0, Server("one"))
        assert (await ask(address)).status_code == 200
        relay.returns = lambda: True
        relay.end(Death("killed", outside=True))
        waiting = asyncio.ensure_future(ask(address))
        while not relay.waiting:
            await asyncio.sleep(0.01)
        await guards.live(0, Server("larger", size=2))
        answer = await waiting
        assert answer.status_code == 503
        assert "has changed" in answer.json()["error"]
        assert "must be" in (await ask(address)).json()["error"]
