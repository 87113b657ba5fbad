"""A small HTTP/1.1 client for one server: its own tritonserver, or the guard of another instance.

Why not a library: on the way of every request aiohttp costs 0.6 ms of processor time, this 0.1 ms
(docs/benchmarks/guard.md). httptools parses.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, cast

import httptools

READ_AHEAD = 64  # chunks of a stream that its reader has not taken yet


class Lost(Exception):
    """The connection broke, or could not be made, before the answer was complete. `begun`: a part of the
    answer has arrived. `fresh`: the connection was made for this request, and nothing came back; a
    tritonserver that is about to end does that to new connections (seen with 24.10).
    """

    def __init__(self, reason: str, *, begun: bool = False, sent: bool = True, fresh: bool = False) -> None:
        super().__init__(reason)
        self.begun, self.sent, self.fresh = begun, sent, fresh


class Answer:
    """The answer to one request, as it arrives. It outlives its connection, which may carry the next request
    already.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.status, self.headers = 0, list[tuple[str, str]]()
        self.head: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue: deque[bytes] = deque()
        self._complete = self._broken = False
        self._news: asyncio.Future[None] | None = None

    def begin(self, status: int) -> None:
        """The head is there."""
        self.status = status
        if not self.head.done():
            self.head.set_result(None)

    def add(self, body: bytes) -> None:
        """A part of the body."""
        self._queue.append(body)
        if len(self._queue) > READ_AHEAD:
            self._connection.pause()
        self._tell()

    def end(self, *, broken: bool = False, fresh: bool = False) -> None:
        """The body is complete, or will never be."""
        self._complete, self._broken = not broken, broken
        if broken and not self.head.done():
            self.head.set_exception(Lost("the connection was lost", fresh=fresh))
            self.head.exception()  # it may be that nobody waits for it any more
        self._tell()

    def abort(self) -> None:
        """Nobody wants the rest."""
        if not self._complete:
            self._connection.transport.abort()

    def _tell(self) -> None:
        if self._news and not self._news.done():
            self._news.set_result(None)

    async def chunks(self) -> AsyncIterator[bytes]:
        """The body as it comes.

        Raises:
            Lost: it breaks off.
        """
        while True:
            while self._queue:
                yield self._queue.popleft()
            if self._complete:
                return
            if self._broken:
                raise Lost("the connection was lost during the answer", begun=True)
            self._connection.resume()
            self._news = asyncio.get_running_loop().create_future()
            await self._news

    async def body(self) -> bytes:
        """The whole body.

        Raises:
            Lost: it breaks off.
        """
        return b"".join([chunk async for chunk in self.chunks()])


class Connection(asyncio.Protocol):
    """One connection, which carries a request at a time."""

    transport: asyncio.Transport

    def __init__(self, client: HttpClient) -> None:
        self.client = client
        self.answer: Answer | None = None
        self.paused, self.fresh = False, True

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Asyncio's."""
        self.transport = cast(asyncio.Transport, transport)
        self.client.open.add(self)

    def send(self, parts: Sequence[bytes | memoryview]) -> Answer:
        """Write a request; what its answer comes into."""
        self.answer = Answer(self)
        self.parser = httptools.HttpResponseParser(self)
        self.transport.writelines(parts)
        return self.answer

    def pause(self) -> None:
        """Read no more until somebody has taken what there is."""
        if not self.paused:
            self.paused = True
            self.transport.pause_reading()

    def resume(self) -> None:
        """Read on."""
        if self.paused:
            self.paused = False
            self.transport.resume_reading()

    def data_received(self, data: bytes) -> None:
        """Asyncio's."""
        self.fresh = False
        if not self.answer:  # nothing was asked
            self.transport.abort()
            return
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserError:
            self.transport.abort()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Httptools'."""
        if self.answer:
            self.answer.headers.append((name.decode("latin-1").lower(), value.decode("latin-1")))

    def on_headers_complete(self) -> None:
        """Httptools'."""
        if self.answer:
            self.answer.begin(self.parser.get_status_code())

    def on_body(self, body: bytes) -> None:
        """Httptools'."""
        if self.answer:
            self.answer.add(body)

    def on_message_complete(self) -> None:
        """Httptools'."""
        if not self.answer:
            return
        keep = self.parser.should_keep_alive() and not self.client.closing
        self.answer.end()
        self.answer = None
        self.resume()
        if keep:
            self.client.idle.append(self)
        else:
            self.transport.close()

    def connection_lost(self, _: Exception | None) -> None:
        """Asyncio's."""
        self.client.forget(self)
        if self.answer:
            self.answer.end(broken=True, fresh=self.fresh)


class HttpClient:
    """Connections to `address`, "host:port" or "unix:/path"."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.idle: list[Connection] = []
        self.open: set[Connection] = set()
        self.closing = False

    async def request(
        self, method: str, path: str, headers: Mapping[str, str], body: Sequence[bytes | memoryview] = ()
    ) -> Answer:
        """Send a request and return when its status and headers are there. A server may close a connection
        that was kept at the moment when it is used again, for reasons of its own: as long as it takes a new
        one, it gets the request once more.

        Raises:
            Lost: the connection broke before that.
        """
        size = sum(map(len, body))
        lines = [
            f"{method} {path} HTTP/1.1",
            "Host: triton",
            *(f"{name}: {value}" for name, value in headers.items()),
        ]
        if body or method == "POST":
            lines.append(f"Content-Length: {size}")
        request = [("\r\n".join(lines) + "\r\n\r\n").encode("latin-1"), *body]
        kept = self._kept()
        if kept is None:
            return await self._ask(await self._connect(), request)
        try:
            return await self._ask(kept, request)
        except Lost as lost:
            if lost.begun or self.closing:
                raise
            with suppress(Lost):  # what counts is the first loss: the server may be gone
                return await self._ask(await self._connect(), request)
            raise

    async def _ask(self, connection: Connection, request: Sequence[bytes | memoryview]) -> Answer:
        if connection.transport.is_closing():  # a server that is about to end accepts, and closes at once
            raise Lost(f"{self.address} has closed the connection", sent=False, fresh=True)
        answer = connection.send(request)
        try:
            await answer.head
        except asyncio.CancelledError:
            answer.abort()
            raise
        return answer

    async def admits(self, path: str) -> bool:
        """Whether the server answers on a new connection, not just on those that it has: one that accepts it
        and closes it is about to end. A connection that cannot be made says nothing about that.
        """
        try:
            connection = await self._connect()
            answer = await self._ask(connection, [f"GET {path} HTTP/1.1\r\nHost: triton\r\n\r\n".encode()])
            await answer.body()
            connection.transport.close()
        except Lost as lost:
            return not lost.fresh
        return True

    def _kept(self) -> Connection | None:
        """An idle connection. One that is being closed is still listed until the event loop says so."""
        while self.idle:
            connection = self.idle.pop()
            if not connection.transport.is_closing():
                return connection
        return None

    async def _connect(self) -> Connection:
        loop = asyncio.get_running_loop()
        try:
            made: tuple[Any, Connection]
            if self.address.startswith("unix:"):
                made = await loop.create_unix_connection(lambda: Connection(self), self.address[5:])
            else:
                host, port = self.address.rsplit(":", 1)
                made = await asyncio.wait_for(
                    loop.create_connection(lambda: Connection(self), host, int(port)), 5
                )
        except (OSError, TimeoutError) as error:
            raise Lost(f"{self.address} cannot be reached: {error}", sent=False) from error
        return made[1]

    def forget(self, connection: Connection) -> None:
        """A connection has ended."""
        self.open.discard(connection)
        if connection in self.idle:
            self.idle.remove(connection)

    def let_go(self) -> None:
        """Close what is idle, and every other connection when its answer is complete: a stopping tritonserver
        waits for them.
        """
        self.closing = True
        for connection in list(self.idle):
            connection.transport.close()

    def abort(self) -> None:
        """Break every connection: the server is gone or hangs."""
        self.closing = True
        for connection in list(self.open):
            connection.transport.abort()
