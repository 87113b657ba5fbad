"""More than the stack can do, and clients that go away."""

from __future__ import annotations

import socket
import threading
import time

import httpx
import numpy as np
import pytest

from .clients import RECORDINGS, figure, pcm, wait_idle, wave
from .conftest import Stack, until

ORDER = (RECORDINGS / "order.wav").read_bytes()
LETTER = (RECORDINGS / "letter.m4a").read_bytes()
LONG = pcm(np.tile(wave("largo.flac"), 4))  # six minutes
SECONDS = 12


def ask(client: httpx.Client, content: bytes = LETTER) -> tuple[int, float, str | None]:
    """Status, seconds, Retry-After."""
    started = time.monotonic()
    answer = client.post(
        "/v1/audio/transcriptions", files={"file": content}, data={"model": "mini-whisper", "language": "en"}
    )
    return answer.status_code, time.monotonic() - started, answer.headers.get("retry-after")


def together(
    stack: Stack, clients: int, seconds: float, pause: float = 0.0
) -> list[tuple[int, float, str | None]]:
    """What `clients` got who asked one after the other for `seconds`; `pause` after a refusal."""
    rows: list[tuple[int, float, str | None]] = []
    end = time.monotonic() + seconds

    def run() -> None:
        with httpx.Client(base_url=stack.url, timeout=120) as client:
            while time.monotonic() < end:
                rows.append(ask(client))
                if rows[-1][0] != 200:
                    time.sleep(pause)

    threads = [threading.Thread(target=run) for _ in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return rows


def test_four_times_the_capacity(stack: Stack) -> None:
    """Places are 16 an instance: with four times as many clients for twelve seconds, admitted requests get
    words in bounded time, refused ones are told when to come back, and right afterwards the stack is ready.
    """
    places = 32
    started = time.monotonic()
    calm = together(stack, places, 8)
    assert {status for status, *_ in calm} == {200}
    pace = len(calm) / (time.monotonic() - started)
    rows = together(stack, 4 * places, SECONDS, pause=0.25)
    accepted = sorted(seconds for status, seconds, _ in rows if status == 200)
    refused = [(status, after) for status, _, after in rows if status != 200]
    print(
        f"\n{pace:.0f}/s calm; {len(accepted)} served, {len(refused)} refused, p50 "
        f"{accepted[len(accepted) // 2]:.2f} s, p99 {accepted[-len(accepted) // 100]:.2f} s"
    )
    assert refused
    assert {status for status, _ in refused} == {503}
    assert all(after and 1 <= int(after) <= 30 for _, after in refused)
    assert len(accepted) >= 0.5 * pace * SECONDS, "refusing must not eat the capacity"
    assert accepted[-len(accepted) // 100] <= 6 * places / pace
    with httpx.Client(base_url=stack.url, timeout=30) as client:

        def calm_again() -> bool:
            return client.get("/health/ready").status_code == 200 and ask(client, ORDER)[0] == 200

        until("it is ready", calm_again, 5)


def leave(stack: Stack, fields: dict[str, str]) -> None:
    """Send a long recording, wait until its stream begins or, where there is none, a moment; close the
    connection.
    """
    body = httpx.Request(
        "POST",
        f"{stack.url}/v1/audio/transcriptions",
        files={"file": LONG},
        data={"model": "mini-whisper", **fields},
    )
    content, host = body.read(), httpx.URL(stack.url)
    head = f"POST /v1/audio/transcriptions HTTP/1.1\r\nHost: {host.netloc.decode()}\r\n"
    head += f"Content-Type: {body.headers['content-type']}\r\nContent-Length: {len(content)}\r\n\r\n"
    with socket.create_connection((host.host, host.port or 80)) as connection:
        connection.settimeout(60)
        connection.sendall(head.encode() + content)
        if fields:
            assert connection.recv(12) == b"HTTP/1.1 200"
        else:
            time.sleep(0.7)


def closed(stack: Stack) -> int:
    """Requests of all gateways whose clients went before there was an answer (nginx's number for it: 499)."""
    return figure(httpx.get(f"{stack.url}/metrics").text, "conch_gateway_requests_total", status="499")


@pytest.mark.parametrize("fields", [{}, {"stream": "true"}], ids=["whole", "stream"])
def test_clients_that_go_free_the_engine(stack: Stack, fields: dict[str, str]) -> None:
    """Ten clients ask for an hour of work altogether and go: both Tritons are idle within seconds, not after
    half a minute.
    """
    before = closed(stack)
    threads = [threading.Thread(target=leave, args=(stack, fields)) for _ in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    started = time.monotonic()
    for instance in (0, 1):
        wait_idle(stack.kserve, instance)
    print(f"\nidle after {time.monotonic() - started:.1f} s")
    assert time.monotonic() - started < 6
    left = closed(stack) - before
    assert left == 0 if fields else 0 < left <= 10, "a stream has begun, with 200, before its client goes"
