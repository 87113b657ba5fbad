"""An HTTP server in a thread whose answers a test writes: plain bodies and server-sent events."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer, ThreadingHTTPServer
from typing import Any


class Recorder(ThreadingHTTPServer):
    """Keeps (path, headers, body) of what was asked."""

    def __init__(self, handler: type[Handler]) -> None:
        super().__init__(("127.0.0.1", 0), handler)
        self.asked: list[tuple[str, dict[str, str], bytes]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    """Subclasses say in `answer` what a POST gets."""

    protocol_version = "HTTP/1.1"
    server: Recorder

    def log_message(self, *_: object) -> None:
        pass

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.asked.append((self.path, dict(self.headers), body))
        self.answer(body)

    def do_GET(self) -> None:
        """The models, as the gateway lists them."""
        abilities = {"mini-whisper": "transcription", "mini-t5": "completion", "mini-llava": "pictures"}
        rows = [{"id": name, "capabilities": [able]} for name, able in abilities.items()]
        self.send(200, "application/json", json.dumps({"data": rows}))

    def answer(self, body: bytes) -> None:
        raise NotImplementedError

    def send(self, status: int, kind: str, text: str | bytes) -> None:
        body = text.encode() if isinstance(text, str) else text
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def begin_events(self) -> None:
        """Server-sent events, until the connection closes."""
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True

    def event(self, data: dict[str, Any], kind: str = "") -> None:
        name = f"event: {kind}\n" if kind else ""
        self.wfile.write(f"{name}data: {json.dumps(data)}\n\n".encode())
        self.wfile.flush()


@contextmanager
def running(server: HTTPServer) -> Iterator[None]:
    """Serve in a thread until the block ends."""
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@contextmanager
def answering(handler: type[Handler]) -> Iterator[Recorder]:
    """Such a server, until the block ends."""
    server = Recorder(handler)
    with running(server):
        yield server
