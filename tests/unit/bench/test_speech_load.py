"""What the benchmark of a running stack counts."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest

from bench.performance.speech.cells import RATE
from bench.performance.speech_load import WINDOW, Make, client, gateway_request, kserve_request, vary


class Third(BaseHTTPRequestHandler):
    """Refuses each third request, and hangs up on each fifth."""

    count = 0

    def do_POST(self) -> None:
        type(self).count += 1
        self.rfile.read(int(self.headers["Content-Length"]))
        if self.count % 5 == 0:
            self.close_connection = True
            return
        self.send_response(503 if self.count % 3 == 0 else 200)
        self.send_header("Content-Length", "4")
        self.end_headers()
        self.wfile.write(b"said")

    def log_message(self, *_: object) -> None:
        """Nothing."""


@pytest.fixture
def url() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Third)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_requests_that_fail_are_counted_and_asking_goes_on(url: str) -> None:
    head = {"Inference-Header-Content-Length": "0"}
    took, failed = client(url, lambda _: ("/v2", b"wave", head), 1, 0.5, 1)
    assert len(took) > 1
    assert "503: b'said'" in failed
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
