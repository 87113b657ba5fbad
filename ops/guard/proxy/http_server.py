"""A small HTTP/1.1 server for nginx and other guards, its only clients.

Why no library: uvicorn takes 0.25 ms of CPU time per request, this 0.05 ms (docs/benchmarks/guard.md).
httptools parses; answers of known length leave in one write, streams in chunks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from http import HTTPStatus
from typing import cast

import httptools

Headers = Iterable[tuple[str, str]]
REASONS = {status.value: status.phrase for status in HTTPStatus}
NO_BODY = (204, 304)


class HttpRequest:
    """One request whose body is complete, and methods to answer it. `gone` is done when the client has closed
    its connection.
    """

    def __init__(
        self, connection: Connection, method: str, path: str, headers: dict[str, str], body: bytes
    ) -> None:
        self._connection = connection
        self.method, self.path, self.headers, self.body = method, path, headers, body
        self.gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.answered = False

    def reply(self, status: int, headers: Headers = (), body: bytes = b"") -> int:
        """Send the whole answer and return its status."""
        length = "" if status in NO_BODY else f"content-length: {len(body)}\r\n"
        self._connection.write([_head(status, headers, length), body])
        self._finish()
        return status

    def begin(self, status: int, headers: Headers) -> None:
        """Send the headers of a stream."""
        self._connection.write([_head(status, headers, "transfer-encoding: chunked\r\n")])
        self.answered = True

    async def chunk(self, data: bytes) -> None:
        """Send a part of a stream; returns when the client keeps up."""
        self._connection.write([f"{len(data):x}\r\n".encode(), data, b"\r\n"])
        await self._connection.room.wait()

    def end(self) -> None:
        """End a stream."""
        self._connection.write([b"0\r\n\r\n"])
        self._finish()

    def _finish(self) -> None:
        self.answered = True
        self._connection.next()


def _head(status: int, headers: Headers, last: str) -> bytes:
    rows = "".join(f"{name}: {value}\r\n" for name, value in headers)
    return f"HTTP/1.1 {status} {REASONS.get(status, '')}\r\n{rows}{last}\r\n".encode("latin-1")


class Connection(asyncio.Protocol):
    """One connection: requests are answered one after another. Bodies of more than `most_bytes` end it with a
    413. Methods named on_… are httptools' callbacks, those of connections, data and writing asyncio's.
    """

    transport: asyncio.Transport

    def __init__(
        self, handle: Callable[[HttpRequest], Awaitable[None]], most_bytes: int, all_open: set[Connection]
    ) -> None:
        self.handle, self.most_bytes, self.all_open = handle, most_bytes, all_open
        self.parser = httptools.HttpRequestParser(self)
        self.current: HttpRequest | None = None
        self.waiting: list[HttpRequest] = []
        self.closing = self.closed = False
        self.room = asyncio.Event()
        self.room.set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.all_open.add(self)

    def data_received(self, data: bytes) -> None:
        try:
            self.parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self.transport.close()

    def on_message_begin(self) -> None:
        self.url, self.headers, self.parts, self.size = b"", dict[str, str](), list[bytes](), 0

    def on_url(self, url: bytes) -> None:
        self.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_body(self, body: bytes) -> None:
        self.size += len(body)
        if self.size <= self.most_bytes:
            self.parts.append(body)

    def on_message_complete(self) -> None:
        path = self.url.decode("latin-1").partition("?")[0]
        body = self.parts[0] if len(self.parts) == 1 else b"".join(self.parts)
        request = HttpRequest(self, self.parser.get_method().decode("latin-1"), path, self.headers, body)
        if not self.parser.should_keep_alive():
            self.closing = True
        if self.size > self.most_bytes:
            self.closing = True
            self.current = request
            request.reply(413)
        elif self.current:
            self.waiting.append(request)
        else:
            self._run(request)

    def _run(self, request: HttpRequest) -> None:
        self.current = request
        self.task = asyncio.ensure_future(self.handle(request))

    def next(self) -> None:
        """Continue after the current request has been answered."""
        self.current = None
        if self.closing and not self.waiting:
            self.transport.close()
        elif self.waiting:
            self._run(self.waiting.pop(0))

    def write(self, parts: list[bytes]) -> None:
        """Write to the client if it is still there."""
        if not self.closed:
            self.transport.write(b"".join(parts))

    def pause_writing(self) -> None:
        self.room.clear()

    def resume_writing(self) -> None:
        self.room.set()

    def connection_lost(self, _: Exception | None) -> None:
        self.closed = True
        self.all_open.discard(self)
        self.room.set()
        for request in (self.current, *self.waiting):
            if request and not request.gone.done():
                request.gone.set_result(None)

    def let_go(self) -> None:
        """Close when the current answer is complete."""
        self.closing = True
        if not self.current:
            self.transport.close()
