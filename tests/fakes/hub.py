"""A server that speaks the model hub's protocol and plain HTTP with ranges."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from .http_server import Handler, answering

COMMIT = "0123456789abcdef0123456789abcdef01234567"
Repositories = Mapping[str, Mapping[str, bytes]]


@dataclass
class Hub:
    """A server and what it was asked; `break_after` cuts the next large answer short, `damage` changes it."""

    url: str = ""
    asked: list[tuple[str, str]] = field(default_factory=list)
    break_after: int | None = None
    damage: bool = False


def listing(name: str, files: Mapping[str, bytes]) -> dict[str, object]:
    """What the hub says about a repository."""
    siblings = []
    for file, content in files.items():
        digest = hashlib.sha256(content).hexdigest()
        lfs = {"lfs": {"sha256": digest, "size": len(content), "pointerSize": 130}}
        large = lfs if len(content) > 1000 else {}
        siblings.append({"rfilename": file, "size": len(content), "blobId": digest[:40], **large})
    return {"id": name, "sha": COMMIT, "siblings": siblings, "private": False, "tags": []}


@contextmanager
def serving(repositories: Repositories, blob: bytes = b"") -> Iterator[Hub]:
    """Serve repositories by their names, and `blob` under every other path."""
    state = Hub()

    class Served(Handler):
        def do_HEAD(self) -> None:  # noqa: N802
            self.do_GET()

        def do_GET(self) -> None:  # noqa: N802
            state.asked.append((f"{self.command} {self.path}", self.headers.get("Range", "")))
            if match := re.match(r"/api/models/([^/]+/[^/]+)", self.path):
                self._send(
                    json.dumps(listing(match[1], repositories[match[1]])).encode(),
                    {"content-type": "application/json"},
                )
            elif match := re.fullmatch(r"/([^/]+/[^/]+)/resolve/[^/]+/(.+)", self.path):
                self._file(repositories[match[1]][match[2]])
            else:
                self._file(blob)

        def _file(self, content: bytes) -> None:
            headers = {
                "x-repo-commit": COMMIT,
                "etag": f'"{hashlib.sha256(content).hexdigest()}"',
                "accept-ranges": "bytes",
            }
            if state.damage and len(content) > 1000 and self.command == "GET":
                content = content[:-1] + b"?"
            start = int(re.match(r"bytes=(\d+)-", self.headers["Range"])[1]) if "Range" in self.headers else 0  # type: ignore[index]
            if start:
                headers["content-range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
            self._send(content[start:], headers, 206 if start else 200)

        def _send(self, content: bytes, headers: dict[str, str], status: int = 200) -> None:
            self.send_response(status)
            for name, value in {**headers, "content-length": str(len(content))}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command == "HEAD":
                return
            if state.break_after is not None and len(content) > state.break_after:
                self.wfile.write(content[: state.break_after])
                state.break_after = None
                self.close_connection = True
                return
            self.wfile.write(content)

    with answering(Served) as server:
        state.url = server.url
        yield state
