"""A small HTTP/1.1 client for one server: the guard's for its own tritonserver and for the guards of other
instances, the gateway's for nginx.

Why no library: for each request httpx takes 2 ms of CPU time, aiohttp 0.6 ms, this 0.1 ms
(docs/decisions/0006-guard.md, docs/benchmarks/cpu.md). httptools parses.
"""

from __future__ import annotations

import asyncio
import math
import socket
import time
from collections import deque
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import suppress
from typing import Any, cast

import httptools

CONNECT_SECONDS = 5.0
NEXT_SECONDS = 0.5  # until the next address of a name is tried
READ_AHEAD = 64  # chunks of a stream that its reader has not taken yet


class Lost(Exception):
    """The connection failed, or could not be made, before the answer was complete.

    Attributes:
        begun: part of the answer has arrived
        fresh: the connection was made for this request, and nothing came back, which a tritonserver that is
            about to end does to new connections (seen with 24.10)
    """

    def __init__(self, reason: str, *, begun: bool = False, sent: bool = True, fresh: bool = False) -> None:
        super().__init__(reason)
        self.begun, self.sent, self.fresh = begun, sent, fresh


class HttpResponse:
    """The answer to one request, as it arrives. It outlives its connection, which may already be used for the
    next request.
    """

    def __init__(self, connection: ClientConnection) -> None:
        self._connection = connection
        self.status, self.headers = 0, list[tuple[str, str]]()
        self.head: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue: deque[bytes] = deque()
        self._complete = self._broken = False
        self._news: asyncio.Future[None] | None = None

    def begin(self, status: int) -> None:
        """Handle the end of the headers."""
        self.status = status
        if not self.head.done():
            self.head.set_result(None)

    def add(self, body: bytes) -> None:
        """Add a part of the body."""
        self._queue.append(body)
        if len(self._queue) > READ_AHEAD:
            self._connection.pause()
        self._tell()

    def end(self, *, broken: bool = False, fresh: bool = False) -> None:
        """Mark the body as complete, or as lost."""
        self._complete, self._broken = not broken, broken
        if broken and not self.head.done():
            self.head.set_exception(Lost("the connection was lost", fresh=fresh))
            self.head.exception()  # it may be that nobody waits for it any more
        self._tell()

    def abort(self) -> None:
        """Discard the rest."""
        if not self._complete:
            self._connection.transport.abort()

    def _tell(self) -> None:
        if self._news and not self._news.done():
            self._news.set_result(None)

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        """Yield the body as it arrives.

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
        """Return the whole body.

        Raises:
            Lost: it breaks off.
        """
        return b"".join([chunk async for chunk in self.chunks()])


class ClientConnection(asyncio.Protocol):
    """One connection, which carries one request at a time. Methods named on_… are httptools' callbacks, those
    of connections and data asyncio's.
    """

    transport: asyncio.Transport

    def __init__(self, client: HttpClient) -> None:
        self.client = client
        self.answer: HttpResponse | None = None
        self.paused, self.fresh = False, True
        self.idle_since = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        if not self.client.address.startswith("unix:"):  # a host that is cut off sends no word
            transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self.client.open.add(self)

    def send(self, parts: Sequence[bytes | memoryview]) -> HttpResponse:
        """Write a request and return its answer."""
        self.answer = HttpResponse(self)
        self.parser = httptools.HttpResponseParser(self)
        self.transport.writelines(parts)
        return self.answer

    def pause(self) -> None:
        """Stop reading until the buffer was consumed."""
        if not self.paused:
            self.paused = True
            self.transport.pause_reading()

    def resume(self) -> None:
        """Read on."""
        if self.paused:
            self.paused = False
            self.transport.resume_reading()

    def data_received(self, data: bytes) -> None:
        self.fresh = False
        if not self.answer:  # nothing was asked
            self.transport.abort()
            return
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserError:
            self.transport.abort()

    def on_header(self, name: bytes, value: bytes) -> None:
        if self.answer:
            self.answer.headers.append((name.decode("latin-1").lower(), value.decode("latin-1")))

    def on_headers_complete(self) -> None:
        if self.answer:
            self.answer.begin(self.parser.get_status_code())

    def on_body(self, body: bytes) -> None:
        if self.answer:
            self.answer.add(body)

    def on_message_complete(self) -> None:
        if not self.answer:
            return
        keep = self.parser.should_keep_alive() and not self.client.closing
        self.answer.end()
        self.answer = None
        self.resume()
        if keep:
            self.client.keep(self)
        else:
            self.transport.close()

    def connection_lost(self, _: Exception | None) -> None:
        self.client.forget(self)
        if self.answer:
            self.answer.end(broken=True, fresh=self.fresh)


class HttpClient:
    """Connections to `address`, "host:port" or "unix:/path"; `host` is sent as Host. One that was idle for
    more than `idle_seconds` is not used again.
    """

    def __init__(self, address: str, host: str = "triton", idle_seconds: float = math.inf) -> None:
        self.address, self.host, self.idle_seconds = address, host, idle_seconds
        self.idle: list[ClientConnection] = []
        self.open: set[ClientConnection] = set()
        self.closing = False

    async def request(
        self, method: str, path: str, headers: Mapping[str, str], body: Sequence[bytes | memoryview] = ()
    ) -> HttpResponse:
        """Send a request and return when status and headers have arrived. A server may close a kept
        connection just when it is reused: as long as it accepts a new one, the request is sent once more.

        Raises:
            Lost: the connection broke before that.
        """
        size = sum(map(len, body))
        lines = [
            f"{method} {path} HTTP/1.1",
            f"Host: {self.host}",
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

    async def _ask(self, connection: ClientConnection, request: Sequence[bytes | memoryview]) -> HttpResponse:
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
        """Tell whether the server answers on a new connection, not only on those that it has: one that
        accepts and closes it is about to end. If no connection can be made, that shows nothing.
        """
        try:
            connection = await self._connect()
            answer = await self._ask(connection, [f"GET {path} HTTP/1.1\r\nHost: triton\r\n\r\n".encode()])
            await answer.body()
            connection.transport.close()
        except Lost as lost:
            return not lost.fresh
        return True

    def keep(self, connection: ClientConnection) -> None:
        """Keep a connection for the next request, and close those that were idle for too long."""
        connection.idle_since = time.monotonic()
        self.idle.append(connection)
        while connection.idle_since - self.idle[0].idle_since > self.idle_seconds:
            self.idle.pop(0).transport.close()

    def _kept(self) -> ClientConnection | None:
        """Return an idle connection. One that is being closed is still listed until the event loop reports
        it.
        """
        while self.idle:
            connection = self.idle.pop()
            if connection.transport.is_closing():
                continue
            if time.monotonic() - connection.idle_since <= self.idle_seconds:
                return connection
            connection.transport.close()
        return None

    async def _connect(self) -> ClientConnection:
        loop = asyncio.get_running_loop()
        try:
            made: tuple[Any, ClientConnection]
            if self.address.startswith("unix:"):
                made = await loop.create_unix_connection(lambda: ClientConnection(self), self.address[5:])
                return made[1]
            host, port = self.address.rsplit(":", 1)
            async with asyncio.timeout(CONNECT_SECONDS):
                rows = await loop.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)
            for *_, place in rows[:-1]:  # another address of the name, if a host is cut off
                with suppress(OSError, TimeoutError):
                    return await self._connected(place[0], place[1], NEXT_SECONDS)
            return await self._connected(rows[-1][4][0], rows[-1][4][1], CONNECT_SECONDS)
        except (OSError, TimeoutError, OverflowError) as error:
            raise Lost(f"{self.address} cannot be reached: {error}", sent=False) from error

    async def _connected(self, host: str | int, port: int | bytes, seconds: float) -> ClientConnection:
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(seconds):
            _, made = await loop.create_connection(lambda: ClientConnection(self), str(host), int(port))
        return made

    def forget(self, connection: ClientConnection) -> None:
        """Drop a connection that has ended."""
        self.open.discard(connection)
        if connection in self.idle:
            self.idle.remove(connection)

    def let_go(self) -> None:
        """Close idle connections now, and others when their answers are complete: a stopping tritonserver
        waits for them.
        """
        self.closing = True
        for connection in list(self.idle):
            connection.transport.close()

    def abort(self) -> None:
        """Close every connection: the server is gone or hangs."""
        self.closing = True
        for connection in list(self.open):
            connection.transport.abort()
