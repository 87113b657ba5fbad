"""The routes of retrieval in front of fakes: where it is off, and where a database is down."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from conch.deployment import Deployment, Instance, Pool
from gateway.app import create_app
from gateway.settings import Settings

from .test_embeddings import FakeTriton


@pytest.fixture
def deployment(tmp_path: Path) -> Path:
    instance = Instance(0, "mini", "minilm", str(tmp_path), (0,), "a:1", "a:2")
    pool = Pool("mini", "minilm", (0,), capabilities=frozenset({"embedding"}), positions=8, dimensions=2)
    Deployment((instance,), (pool,)).save(tmp_path / "deployment.json")
    return tmp_path / "deployment.json"


@pytest.fixture
def down(deployment: Path, tmp_path: Path) -> Iterator[TestClient]:
    """SQLite in a folder that is not there yet."""
    settings = Settings(
        deployment=deployment,
        documents_url=f"sqlite:{tmp_path}/later/documents.sqlite",
        vectors_url=f"unix:{tmp_path}/nobody",
    )
    with TestClient(create_app(settings, triton=FakeTriton())) as client:  # type: ignore[arg-type]
        yield client


def test_where_it_is_off_it_says_how_it_is_switched_on(deployment: Path) -> None:
    with TestClient(create_app(Settings(deployment=deployment), triton=FakeTriton())) as client:  # type: ignore[arg-type]
        for path in ("/v1/files", "/v1/vector_stores", "/v1/vector_stores/a/files"):
            answer = client.get(path)
            assert answer.status_code == 404
            assert "docs/retrieval.md" in answer.json()["error"]["message"]


def test_a_document_database_that_is_down_is_named_and_comes_back(down: TestClient, tmp_path: Path) -> None:
    answer = down.get("/v1/files")
    assert answer.status_code == 503
    assert answer.json()["error"]["message"].startswith("the document database (SQLite) does not answer")
    assert answer.headers["retry-after"]
    assert (
        down.post("/v1/files", files={"file": ("a.txt", b"a")}, data={"purpose": "assistants"}).status_code
        == 503
    )
    (tmp_path / "later").mkdir()
    assert down.get("/v1/files").json()["data"] == []
    made = down.post("/v1/files", files={"file": ("a.txt", b"a")}, data={"purpose": "assistants"}).json()
    assert down.get(f"/v1/files/{made['id']}/content").content == b"a"


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"purpose": "assistants", "expires_after[anchor]": "created_at"}, "expires_after is not supported"),
        ({"purpose": "x"}, "use one of"),
        ({}, "use one of"),
        ({"purpose": "assistants", "colour": "red"}, "unknown field 'colour'"),
    ],
)
def test_forms_are_checked(down: TestClient, fields: dict[str, str], said: str) -> None:
    answer = down.post("/v1/files", files={"file": ("a.txt", b"a")}, data=fields)
    assert answer.status_code == 400
    assert said in answer.json()["error"]["message"]
