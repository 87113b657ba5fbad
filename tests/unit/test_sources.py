"""Downloads, against local servers that speak HTTP ranges and the hub's protocol."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from build.catalog import Model
from build.sources import FetchError, Lock, download, fetch, pinned
from tests.hub import COMMIT, Hub, serving

BLOB = bytes(range(256)) * 4000
DIGEST = hashlib.sha256(BLOB).hexdigest()
FILES = {"config.json": b'{"model_type": "whisper"}', "model.safetensors": BLOB, "README.md": b"not wanted"}


@pytest.fixture
def hub() -> Iterator[Hub]:
    with serving({"owner/name": FILES}, BLOB) as hub:
        yield hub


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
