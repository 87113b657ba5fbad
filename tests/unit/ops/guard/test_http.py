"""The guard's HTTP server and client, one against the other and against httpx."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import httpx
import pytest
import uvloop

from conch.http_client import ClientConnection, HttpClient, Lost
from ops.guard.proxy.http_server import Connection, HttpRequest


@asynccontextmanager
async def serving(handle: Callable[[HttpRequest], Awaitable[None]], most: int = 1000) -> AsyncIterator[str]:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Connection(handle, most, set()), "127.0.0.1", 0)
    async with server:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def echo(request: HttpRequest) -> None:
    request.reply(
        200,
        [("x-path", request.path), ("x-method", request.method), ("x-a", request.headers.get("x-a", ""))],
        request.body,
    )


async def test_requests_and_answers() -> None:
    """One connection for requests that follow each other; whatever httpx says is understood."""
    async with serving(echo) as address:
        client = HttpClient(address)
        for n in range(3):
            answer = await client.request("POST", "/a/b", {"X-A": "1"}, [b"x" * n, b"y"])
            assert await answer.body() == b"x" * n + b"y"
            assert dict(answer.headers)["x-a"] == "1"
        assert len(client.open) == 1
        async with httpx.AsyncClient(base_url=f"http://{address}") as other:
            assert (await other.get("/q?x=1")).headers["x-path"] == "/q"
            assert (await other.post("/", content=b"z" * 1000)).content == b"z" * 1000
            assert (await other.post("/", content=b"z" * 1001)).status_code == 413


async def test_every_address_of_a_name_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first host refuses."""
    async with serving(echo) as address:
        port = int(address.rpartition(":")[2])
        rows = [
            (socket.AF_INET, socket.SOCK_STREAM, 6, "", (host, port)) for host in ("127.0.0.3", "127.0.0.1")
        ]

        async def resolved(*_: object, **__: object) -> list[object]:
            return list(rows)

        monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", resolved)
        answer = await HttpClient(f"nginx:{port}").request("GET", "/a", {})
        assert dict(answer.headers)["x-path"] == "/a"


async def test_streams_come_as_they_are_made() -> None:
    async def tell(request: HttpRequest) -> None:
        request.begin(200, [])
        for n in range(300):
            await request.chunk(str(n).encode() + b",")
        request.end()

    async with serving(tell) as address:
        answer = await HttpClient(address).request("GET", "/", {})
        assert (await answer.body()).count(b",") == 300


def test_an_answer_to_a_client_that_has_gone_is_dropped() -> None:
    """It is noticed; whole or in chunks, and a handler that waits until the client keeps up goes on. uvloop's
    transports raise an error of their own when they are closed.
    """
    done: list[str] = []

    async def late(request: HttpRequest) -> None:
        await request.gone
        await asyncio.sleep(0.05)
        if request.path == "/whole":
            request.reply(200, [], b"x" * 1000)
        else:
            request.begin(200, [])
            await request.chunk(b"x" * 1000)
            request.end()
        done.append(request.path)

    async def check() -> None:
        async with serving(late) as address:
            for path in ("/whole", "/chunks"):
                asked = asyncio.ensure_future(HttpClient(address).request("GET", path, {}))
                await asyncio.sleep(0.05)
                asked.cancel()
            await asyncio.sleep(0.2)
        assert done == ["/whole", "/chunks"]
        done.clear()

    for run_in in (asyncio.run, uvloop.run):
        run_in(asyncio.wait_for(check(), 20))


async def test_broken_answers_are_lost() -> None:
    """Closed before the head, in the middle of the body, or nobody there at all."""
    for said in (b"", b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nab"):

        async def half(
            reader: asyncio.StreamReader, writer: asyncio.StreamWriter, said: bytes = said
        ) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(said)
            writer.close()

        server = await asyncio.start_server(half, "127.0.0.1", 0)
        async with server:
            client = HttpClient(f"127.0.0.1:{server.sockets[0].getsockname()[1]}")
            with pytest.raises(Lost) as caught:
                await (await client.request("GET", "/", {})).body()
            assert caught.value.begun is bool(said)
            assert caught.value.fresh is not bool(said)
    with pytest.raises(Lost) as caught:
        await HttpClient("unix:/nobody/is/here").request("GET", "/", {})
    assert not caught.value.sent


async def test_a_closed_connection_is_not_used_again() -> None:
    """After let_go an idle connection is listed until the event loop has noticed that it closed."""
    async with serving(echo) as address:
        client = HttpClient(address)
        await (await client.request("GET", "/a", {})).body()
        assert client.idle
        client.let_go()
        assert (await client.request("GET", "/b", {})).status == 200


def test_a_server_that_accepts_and_closes_is_lost() -> None:
    """As one that drains does. Nothing was sent, so another instance may be asked; uvloop's transports raise
    an error of their own when they are closed.
    """

    async def check() -> None:
        server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
        async with server:
            client = HttpClient(f"127.0.0.1:{server.sockets[0].getsockname()[1]}")
            connect = client._connect

            async def late() -> ClientConnection:
                connection = await connect()
                while not connection.transport.is_closing():
                    await asyncio.sleep(0.01)
                return connection

            client._connect = late  # type: ignore[method-assign]
            with pytest.raises(Lost) as caught:
                await client.request("GET", "/", {})
            assert not caught.value.sent
            while client.open:
                await asyncio.sleep(0.01)

    for run_in in (asyncio.run, uvloop.run):
        run_in(asyncio.wait_for(check(), 20))


async def test_two_requests_at_once_on_a_connection_are_answered_in_order() -> None:
    async with serving(echo) as address:
        host, port = address.split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(
            b"GET /1 HTTP/1.1\r\nHost: x\r\n\r\nGET /2 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
        )
        text = await reader.read()
        assert text.index(b"x-path: /1") < text.index(b"x-path: /2")
        writer.close()


async def test_an_answer_outlives_its_connection() -> None:
    """A connection carries the next request as soon as an answer is complete, read or not; nobody gets
    another's.
    """
    async with serving(echo) as address:
        client = HttpClient(address)

        async def ask(n: int) -> None:
            answer = await client.request("POST", f"/{n}", {}, [str(n).encode() * 50])
            await asyncio.sleep(0.001 * (n % 7))
            assert dict(answer.headers)["x-path"] == f"/{n}"
            assert await answer.body() == str(n).encode() * 50

        for begin in range(0, 900, 30):
            await asyncio.gather(*[ask(n) for n in range(begin, begin + 30)])


@pytest.mark.parametrize("alive", [True, False])
async def test_a_kept_connection_that_breaks_is_made_anew(*, alive: bool) -> None:
    """A server closes it as it is used again: with the request in hand, which it reads once more. One that
    takes no new connection has gone, and the loss is the caller's to explain.
    """
    asked, connections = list[int](), list[asyncio.StreamWriter]()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(writer)
        for answered in (True, False):
            await reader.readexactly(len(head) + 4)
            asked.append(len(connections))
            if answered:
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")
            elif not alive:
                server.close()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()[:2]
    head = b"POST / HTTP/1.1\r\nHost: triton\r\nContent-Length: 4\r\n\r\n"
    client = HttpClient(f"{host}:{port}")
    assert await (await client.request("POST", "/", {}, [b"1234"])).body() == b"ok"
    if alive:
        assert await (await client.request("POST", "/", {}, [b"5678"])).body() == b"ok"
        assert asked == [1, 1, 2]
    else:
        with pytest.raises(Lost, match="the connection was lost"):
            await client.request("POST", "/", {}, [b"5678"])
        assert asked == [1, 1]
    client.abort()
    server.close()
