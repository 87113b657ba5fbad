"""The bytes of bodies that a gateway holds at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import httpx
import pytest
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.types import Receive, Scope, Send

from gateway.bodies import FORMS, UNKNOWN, Bodies

MIB = 1 << 20


class Held:
    """An application that reads a body and answers when it may; `entered` grows with each that came in."""

    def __init__(self) -> None:
        self.may, self.entered = asyncio.Event(), 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.entered += 1
        size = len(await Request(scope, receive).body())
        await self.may.wait()
        await PlainTextResponse(str(size))(scope, receive, send)

    async def inside(self, count: int) -> None:
        async with asyncio.timeout(5):
            while self.entered < count:
                await asyncio.sleep(0)


def client(app: Bodies) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://gateway")


async def test_a_body_that_does_not_fit_is_refused_and_fits_later() -> None:
    held = Held()
    bodies = Bodies(held, 4 * MIB)
    async with client(bodies) as http:
        first = asyncio.create_task(http.post("/v1/chat/completions", content=b"x" * (3 * MIB)))
        await held.inside(1)
        refused = await http.post("/v1/chat/completions", content=b"x" * (2 * MIB))
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "2")
        assert refused.json()["error"]["code"] == "overloaded"
        assert "3 of 4 MiB" in refused.json()["error"]["message"]
        small = asyncio.create_task(http.post("/", content=b"x" * MIB))
        await held.inside(2)
        held.may.set()
        assert [(await one).text for one in (first, small)] == [str(3 * MIB), str(MIB)]
        assert (await http.post("/", content=b"x" * (2 * MIB))).status_code == 200
    assert bodies.held == 0


async def test_what_is_not_read_into_memory_is_not_counted() -> None:
    """Forms are not where they go to disk; anywhere else they are read before they are refused."""
    held = Held()
    bodies = Bodies(held, MIB)
    async with client(bodies) as http:
        first = asyncio.create_task(http.post("/", content=b"x" * MIB))
        await held.inside(1)
        form = {"file": b"x" * (2 * MIB)}
        waiting = [asyncio.create_task(http.post(path, files=form)) for path in sorted(FORMS)]
        waiting.append(asyncio.create_task(http.get("/")))
        await held.inside(1 + len(waiting))
        assert (await http.post("/v1/chat/completions", files=form)).status_code == 503
        held.may.set()
        assert {(await one).status_code for one in (first, *waiting)} == {200}


async def test_a_body_larger_than_all_is_alone() -> None:
    held = Held()
    held.may.set()
    bodies = Bodies(held, MIB)
    async with client(bodies) as http:
        assert (await http.post("/", content=b"x" * (2 * MIB))).text == str(2 * MIB)
    assert bodies.held == 0


async def test_a_body_of_undeclared_length_counts_as_a_large_one() -> None:
    held = Held()
    bodies = Bodies(held, UNKNOWN)

    async def parts() -> AsyncIterator[bytes]:
        yield b"x"

    async with client(bodies) as http:
        first = asyncio.create_task(http.post("/", content=parts()))
        await held.inside(1)
        assert bodies.held == UNKNOWN
        assert (await http.post("/", content=b"x")).status_code == 503
        held.may.set()
        assert (await first).status_code == 200


async def test_an_error_gives_its_bytes_back() -> None:
    async def broken(scope: Scope, receive: Receive, send: Send) -> None:
        raise RuntimeError("broken")

    bodies = Bodies(broken, MIB)
    async with client(bodies) as http:
        with pytest.raises(RuntimeError):
            await http.post("/", content=b"x" * MIB)
    assert bodies.held == 0
