"""Downloads, against local servers that speak HTTP ranges and the hub's protocol."""

from __future__ import annotations

import hashlib
import http.server
import json
import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from build.catalog import Model
from build.sources import FetchError, Lock, download, fetch, pinned

BLOB = bytes(range(256)) * 4000
DIGEST = hashlib.sha256(BLOB).hexdigest()
COMMIT = "0123456789abcdef0123456789abcdef01234567"
FILES = {"config.json": b'{"model_type": "whisper"}', "model.safetensors": BLOB, "README.md": b"not wanted"}


@dataclass
class Hub:
    """A server and what it was asked; `break_after` cuts the next large answer short, `damage` changes it."""

    url: str = ""
    asked: list[tuple[str, str]] = field(default_factory=list)
    break_after: int | None = None
    damage: bool = False


@pytest.fixture
def hub() -> Iterator[Hub]:
    state = Hub()

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None: ...

        def do_HEAD(self) -> None:
            self.do_GET()

        def do_GET(self) -> None:
            state.asked.append((f"{self.command} {self.path}", self.headers.get("Range", "")))
            if self.path.startswith("/api/models/"):
                self._send(json.dumps(listing()).encode(), {"content-type": "application/json"})
            elif match := re.fullmatch(r"/owner/name/resolve/[^/]+/(.+)", self.path):
                self._file(FILES[match[1]])
            else:
                self._file(BLOB)

        def _file(self, content: bytes) -> None:
            headers = {"x-repo-commit": COMMIT, "etag": f'"{hashlib.sha256(content).hexdigest()}"', "accept-ranges": "bytes"}
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

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    state.url = f"http://127.0.0.1:{server.server_port}"
    yield state
    server.shutdown()
    server.server_close()
    thread.join()


def listing() -> dict[str, object]:
    siblings = []
    for name, content in FILES.items():
        digest = hashlib.sha256(content).hexdigest()
        lfs = {"lfs": {"sha256": digest, "size": len(content), "pointerSize": 130}} if len(content) > 1000 else {}
        siblings.append({"rfilename": name, "size": len(content), "blobId": digest[:40], **lfs})
    return {"_id": "1", "id": "owner/name", "modelId": "owner/name", "sha": COMMIT, "siblings": siblings, "private": False, "downloads": 0, "tags": [], "likes": 0}


def test_https_resumes_where_it_was_cut(hub: Hub, tmp_path: Path) -> None:
    """A download that breaks keeps what it has; the next run asks for the rest only, and the hash is checked."""
    target, hub.break_after = tmp_path / "large.pt", 300_000
    with pytest.raises(FetchError, match="run the build again to continue"):
        download(f"{hub.url}/large.pt", target, DIGEST)
    assert not target.exists()
    download(f"{hub.url}/large.pt", target, DIGEST)
    assert target.read_bytes() == BLOB
    first = int(re.match(r"bytes=(\d+)-", hub.asked[-1][1])[1])  # type: ignore[index]
    assert 0 < first <= 300_000


def test_https_with_another_hash_is_not_kept(hub: Hub, tmp_path: Path) -> None:
    """The file is removed, and the message has both hashes."""
    with pytest.raises(FetchError, match="the catalog says 00"):
        download(f"{hub.url}/large.pt", tmp_path / "large.pt", "00" * 32)
    assert list(tmp_path.iterdir()) == []


def model() -> Model:
    return Model("hubbed", "whisper", "hf:owner/name", "MIT", revision="main")


def test_hub_resolves_the_branch_once(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """HF_ENDPOINT is honoured; the branch becomes a commit in catalog.lock; only wanted files come; the second fetch asks nobody."""
    monkeypatch.setenv("HF_ENDPOINT", hub.url)
    assert pinned(model(), Lock(tmp_path / "catalog.lock")) is None
    weights = fetch(model(), ["config.json", "model*.safetensors*"], tmp_path)
    assert (weights.folder / "model.safetensors").read_bytes() == BLOB
    assert not (weights.folder / "README.md").exists()
    assert weights.revision == COMMIT
    assert pinned(model(), Lock(tmp_path / "catalog.lock")) == COMMIT
    asked = len(hub.asked)
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    assert fetch(model(), ["config.json", "model*.safetensors*"], tmp_path) == weights
    assert len(hub.asked) == asked


def test_damaged_hub_file_is_removed(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytes that differ from the hub's own hash are never used."""
    monkeypatch.setenv("HF_ENDPOINT", hub.url)
    hub.damage = True
    with pytest.raises(FetchError, match=r"model\.safetensors arrived damaged"):
        fetch(model(), ["model*.safetensors*"], tmp_path)
    assert not (tmp_path / "hubbed" / "model.safetensors").exists()


def test_unreachable_hub_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What to check is named."""
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(FetchError, match="HF_ENDPOINT"):
        fetch(model(), ["config.json"], tmp_path)


def test_another_revision_is_not_taken_silently(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the catalog asks for another revision than the lock was made for, nothing counts as built, and the fetch says what to do."""
    monkeypatch.setenv("HF_ENDPOINT", hub.url)
    fetch(model(), ["config.json"], tmp_path)
    moved = Model("hubbed", "whisper", "hf:owner/name", "MIT", revision="v2")
    assert pinned(moved, Lock(tmp_path / "catalog.lock")) is None
    with pytest.raises(FetchError, match="pins hf:owner/name at main, the catalog says hf:owner/name at v2; .* remove the entry"):
        fetch(moved, ["config.json"], tmp_path)
