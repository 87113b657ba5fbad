"""A small HTTP/1.1 client for one server: its own tritonserver, or the guard of another instance.

Why not a library: on the way of every request aiohttp costs 0.6 ms of processor time, this 0.1 ms (docs/benchmarks/guard.md). httptools parses.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, cast

import httptools

READ_AHEAD = 64  # chunks of a stream that its reader has not taken yet


class Lost(Exception):
    """The connection broke, or could not be made, before the answer was complete. `begun`: a part of the answer has arrived."""

    def __init__(self, reason: str, *, begun: bool = False, sent: bool = True) -> None:
        super().__init__(reason)
        self.begun, self.sent = begun, sent


class Answer(asyncio.Protocol):
    """One connection, and the answer that it is reading. A connection carries one request at a time."""

    transport: asyncio.Transport

    def __init__(self, client: HttpClient) -> None:
        self.client = client
        self.loop = asyncio.get_running_loop()
        self.busy = False
        self.closed = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Asyncio's."""
        self.transport = cast(asyncio.Transport, transport)

    def send(self, parts: Sequence[bytes | memoryview]) -> None:
        """Write a request; its answer is read by `head` and `chunks`."""
        self.busy, self.complete, self.error = True, False, False
        self.status, self.headers = 0, list[tuple[str, str]]()
        self.parser = httptools.HttpResponseParser(self)
        self.queue: deque[bytes] = deque()
        self.head: asyncio.Future[None] = self.loop.create_future()
        self.news: asyncio.Future[None] | None = None
        self.paused = False
        self.transport.writelines(parts)

    def data_received(self, data: bytes) -> None:
        """Asyncio's."""
        if not self.busy:  # nothing was asked: the server says goodbye
            self.abort()
            return
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserError:
            self.abort()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Httptools'."""
        self.headers.append((name.decode("latin-1").lower(), value.decode("latin-1")))

    def on_headers_complete(self) -> None:
        """Httptools'."""
        self.status = self.parser.get_status_code()
        if not self.head.done():
            self.head.set_result(None)

    def on_body(self, body: bytes) -> None:
        """Httptools'."""
        self.queue.append(body)
        if len(self.queue) > READ_AHEAD and not self.paused:
            self.paused = True
            self.transport.pause_reading()
        self._tell()

    def on_message_complete(self) -> None:
        """Httptools'."""
        keep = self.parser.should_keep_alive()
        self.complete = True
        self.busy = False
        self._tell()
        if keep and not self.client.closing:
            self.client.idle.append(self)
        else:
            self.transport.close()

    def connection_lost(self, _: Exception | None) -> None:
        """Asyncio's."""
        self.closed = True
        self.client.forget(self)
        if self.busy:
            self.error = True
            if not self.head.done():
                self.head.set_exception(Lost("the connection broke"))
                self.head.exception()  # it may be that nobody waits for it any more
            self._tell()

    def abort(self) -> None:
        """Nobody wants the rest."""
        self.transport.abort()

    def _tell(self) -> None:
        if self.news and not self.news.done():
            self.news.set_result(None)

    async def chunks(self) -> AsyncIterator[bytes]:
        """The body as it comes.

        Raises:
            Lost: it breaks off.
        """
        while True:
            while self.queue:
                yield self.queue.popleft()
            if self.paused:
                self.paused = False
                self.transport.resume_reading()
            if self.complete and not self.queue:
                return
            if self.error:
                raise Lost("the connection broke in the middle of the answer", begun=True)
            self.news = self.loop.create_future()
            await self.news

    async def body(self) -> bytes:
        """The whole body.

        Raises:
            Lost: it breaks off.
        """
        return b"".join([chunk async for chunk in self.chunks()])


class HttpClient:
    """Connections to `address`, "host:port" or "unix:/path"."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.idle: list[Answer] = []
        self.open: set[Answer] = set()
        self.closing = False

    async def request(self, method: str, path: str, headers: Mapping[str, str], body: Sequence[bytes | memoryview] = ()) -> Answer:
        """Send a request and return when its status and headers are there.

        Raises:
            Lost: the connection broke before that.
        """
        size = sum(map(len, body))
        lines = [f"{method} {path} HTTP/1.1", "Host: triton", *(f"{name}: {value}" for name, value in headers.items())]
        if body or method == "POST":
            lines.append(f"Content-Length: {size}")
        answer = self.idle.pop() if self.idle else await self._connect()
        answer.send([("\r\n".join(lines) + "\r\n\r\n").encode("latin-1"), *body])
        try:
            await answer.head
        except asyncio.CancelledError:
            answer.abort()
            raise
        return answer

    async def _connect(self) -> Answer:
        loop = asyncio.get_running_loop()
        try:
            made: tuple[Any, Answer]
            if self.address.startswith("unix:"):
                made = await loop.create_unix_connection(lambda: Answer(self), self.address[5:])
            else:
                host, port = self.address.rsplit(":", 1)
                made = await asyncio.wait_for(loop.create_connection(lambda: Answer(self), host, int(port)), 5)
        except (OSError, TimeoutError) as error:
            raise Lost(f"{self.address} cannot be reached: {error}", sent=False) from error
        self.open.add(made[1])
        return made[1]

    def forget(self, answer: Answer) -> None:
        """A connection has ended."""
        self.open.discard(answer)
        if answer in self.idle:
            self.idle.remove(answer)

    def let_go(self) -> None:
        """Close what is idle, and every other connection when its answer is complete: a stopping tritonserver waits for them."""
        self.closing = True
        for answer in list(self.idle):
            answer.transport.close()

    def abort(self) -> None:
        """Break every connection: the server is gone or hangs."""
        self.closing = True
        for answer in list(self.open):
            answer.abort()
