"""The gateway's connection to nginx."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import numpy as np
import pytest

from conch.deployment import Pool
from conch.errors import ApiError
from gateway.triton import Triton, events

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
POOL = Pool("mini", "whisper", (0,), {})
ANSWER = (
    b'{"model_name":"m","model_version":"1",'
    b'"outputs":[{"name":"Y","datatype":"INT32","shape":[1],"data":[7]}]}'
)


@asynccontextmanager
async def asking(serve: Serve, seconds: float = 5) -> AsyncIterator[Triton]:
    """The gateway's side of a server whose connections `serve` gets."""
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        triton = Triton(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", {}, seconds=seconds)
        yield triton
        await triton.close()


@asynccontextmanager
async def nginx(answers_per_connection: int) -> AsyncIterator[tuple[Triton, list[int]]]:
    """An HTTP server that promises to keep connections and drops each, without a word, at the request after
    `answers_per_connection`.
    """
    requests: list[int] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for n in range(answers_per_connection + 1):
            try:
                head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
            except asyncio.IncompleteReadError:
                break
            await reader.readexactly(int(head.split("content-length: ")[1].split("\r\n")[0]))
            requests.append(n)
            if n < answers_per_connection:
                writer.write(
                    b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
                    % len(ANSWER)
                    + ANSWER
                )
                await writer.drain()
        writer.close()

    async with asking(serve) as triton:
        yield triton, requests


async def ask(triton: Triton) -> int:
    return int((await triton.infer(POOL, "m", {"X": np.zeros(1, np.int32)}, ["Y"], "id"))["Y"][0])


async def test_a_kept_connection_that_nginx_closes_loses_nothing() -> None:
    """What a reload of nginx does to idle connections while a request is on its way."""
    async with nginx(answers_per_connection=1) as (triton, requests):
        assert [await ask(triton) for _ in range(3)] == [7, 7, 7]
        assert requests == [0, 1, 0, 1, 0], "each connection was tried again, then replaced"


async def test_who_never_answers_is_asked_twice() -> None:
    async with nginx(answers_per_connection=0) as (triton, requests):
        with pytest.raises(ApiError) as caught:
            await ask(triton)
        assert caught.value.status == 503
        assert len(requests) == 2


async def test_responses_of_a_stream_in_any_pieces() -> None:
    """Whatever nginx cuts, in the middle of a character and of a separator too."""
    told = 'data: {"text_output": "Ää"}\n\ndata: {"text_output": "b"}\n\n'.encode()

    async def cut(size: int) -> AsyncIterator[bytes]:
        for start in range(0, len(told), size):
            yield told[start : start + size]

    for size in range(1, len(told) + 1):
        assert [event async for event in events(cut(size), 1)] == [
            '{"text_output": "Ää"}',
            '{"text_output": "b"}',
        ]


@pytest.mark.parametrize("said", [b"", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"])
async def test_a_stream_that_stops_is_a_timeout(said: bytes) -> None:
    """Before its head, or after it; the connection is closed, so that the guard stops the work."""
    gone = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(said)
        while await reader.read(1000):
            pass
        gone.set()
        writer.close()

    async with asking(serve, seconds=0.2) as triton:
        with pytest.raises(ApiError) as caught:
            _ = [one async for one in triton.stream(POOL, "m", {}, "id")]
        assert caught.value.status == 504
        await asyncio.wait_for(gone.wait(), 5)


@pytest.mark.parametrize(
    ("before", "status", "code"),
    [(b"", 400, "model_refused"), (b'data: {"a": 1}\n\n', 500, "model_failed")],
)
async def test_an_error_in_a_stream_is_the_servers_once_it_has_begun(
    before: bytes, status: int, code: str
) -> None:
    """Triton gives it no status: what is refused is refused first."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n" + before + b'data: {"error": "what happened"}\n\n')
        writer.close()

    async with asking(serve) as triton:
        with pytest.raises(ApiError) as caught:
            _ = [one async for one in triton.stream(POOL, "m", {}, "id")]
        assert (str(caught.value), caught.value.status, caught.value.code) == ("what happened", status, code)


@pytest.mark.parametrize(
    ("inference", "guards", "ready"),
    [(None, 200, True), (None, 503, False), (503, 200, True), (503, 503, False), (500, 200, False)],
)
async def test_a_model_with_all_rows_taken_is_ready(
    monkeypatch: pytest.MonkeyPatch, inference: int | None, guards: int, ready: bool
) -> None:
    """Its readiness inference waits for long texts to end, or finds the queue full; the guards know more."""
    monkeypatch.setattr("gateway.triton.READY_SECONDS", 0.1)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            asked = b"GET /models/mini/v2/health/ready " in line  # maybe after the body of a request
            if b" HTTP/1.1" in line and (status := guards if asked else inference):
                writer.write(b"HTTP/1.1 %d X\r\nContent-Length: 0\r\n\r\n" % status)
        writer.close()

    async with asking(serve) as triton:
        pool = Pool("mini", "whisper", (0,), {"model": "m", "inputs": {}})
        assert await triton.ready(pool) is ready


async def test_a_connection_that_was_idle_for_long_is_not_used() -> None:
    """nginx may be on another host by then."""
    async with nginx(answers_per_connection=9) as (triton, requests):
        assert [await ask(triton) for _ in range(2)] == [7, 7]
        triton.http.idle_seconds = 0
        assert await ask(triton) == 7
        assert requests == [0, 1, 0]
        assert len(triton.http.idle) == 1
