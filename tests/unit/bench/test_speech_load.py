"""What the benchmark of a running stack counts."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial

import numpy as np
import pytest

from bench.performance.speech.cells import RATE
from bench.performance.speech_load import WINDOW, Make, client, gateway_request, kserve_request, vary
from tests.fakes.http_server import Handler, answering


class Third(Handler):
    """Refuses each third request, and hangs up on each fifth."""

    protocol_version = "HTTP/1.0"

    def answer(self, body: bytes) -> None:
        count = len(self.server.asked)
        if count % 5 == 0:
            self.close_connection = True
            return
        self.send(503 if count % 3 == 0 else 200, "text/plain", "full")


@pytest.fixture
def url() -> Iterator[str]:
    with answering(Third) as server:
        yield server.url


def test_requests_that_fail_are_counted_and_asking_goes_on(url: str) -> None:
    head = {"Inference-Header-Content-Length": "0"}
    took, failed = client(url, lambda _: ("/v2", b"wave", head), 1, 0.5, 1)
    assert len(took) > 1
    assert "503: b'full'" in failed
    assert any(re.match("RemoteDisconnected", one) for one in failed)


@pytest.mark.parametrize(
    ("make", "width"), [(kserve_request, 4), (partial(gateway_request, "mini-whisper", None), 2)]
)
def test_no_two_windows_are_alike(make: Make, width: int) -> None:
    """However many a client sends; and nothing but samples changes."""
    _, made, headers = make(1)
    seen = set[bytes]()
    for number in range(1, 200 * 64, 64):
        body = bytearray(made)
        vary(body, headers, number)
        seen.add(bytes(body))
        assert len(body) == len(made)
    assert len(seen) == 200
    differs = np.flatnonzero(np.frombuffer(made, np.uint8) != np.frombuffer(body, np.uint8))
    assert WINDOW // 2 < len(differs) <= WINDOW * width
    assert differs[-1] - differs[0] <= WINDOW * RATE * width
