"""The routes of retrieval in front of fakes: where it is off, and where a database is down."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from conch.deployment import Deployment, Instance, Pool
from gateway.app import create_app
from gateway.errors import ApiError
from gateway.retrieval.chain import Answer, asked
from gateway.retrieval.library import Item, Library
from gateway.retrieval.schema import SearchRequest
from gateway.settings import Settings
from gateway.vision.urls import Picture

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


def picture(data: str = "AAAA") -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}}


@pytest.mark.parametrize(
    ("fields", "param", "said"),
    [
        ({"query": [picture()]}, "query", "no model of this vector store reads pictures"),
        ({"query": [{"type": "image_url", "image_url": {"url": "http://a/b.png"}}]}, "query", "[0] is a URL"),
        ({"query": [{"type": "text", "text": ""}]}, "query", "a text of 0 characters"),
        ({"query": ["a", {"type": "audio"}]}, "query", "a text, or an object whose type is"),
        ({"query": []}, "query", "query"),
        ({"query": [picture()] * 33}, "query", "query"),
        ({"query": ["a" * 5000]}, "query", "a text of 5000 characters"),
        ({"query": picture()}, "query", "query"),
        ({"query": [picture()], "question": "what is it?"}, "question", "none is served here"),
        ({"query": "a", "question": "what is it?"}, "question", "asked about one picture"),
        ({"query": [picture()] * 2, "question": "what?"}, "question", "asked about one picture"),
        ({"query": "a", "model": "mini"}, None, "send a question"),
    ],
)
def test_queries_are_checked(
    down: TestClient, tmp_path: Path, fields: dict[str, Any], param: str | None, said: str
) -> None:
    (tmp_path / "later").mkdir()
    store = down.post("/v1/vector_stores", json={}).json()["id"]
    answer = down.post(f"/v1/vector_stores/{store}/search", json=fields)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, param), error
    assert said in error["message"]


class Painter:
    """A vision-language model that always says the same."""

    def __init__(self, says: str) -> None:
        self.says = says
        self.asked: list[tuple[bytes, str]] = []

    async def answer(self, picture: Picture, question: str) -> str:
        self.asked.append((picture.data, question))
        return self.says


def test_the_answer_to_a_question_is_searched_for() -> None:
    """By the model that is named, or the first; one that says nothing, or is not there, is a 400."""
    painters = {"a": Painter(" a red boat\n"), "b": Painter(" \n")}
    library = Library(None, None, {}, painters)  # type: ignore[arg-type]

    def of(**fields: Any) -> tuple[list[Item], Answer | None]:
        form = SearchRequest.model_validate({"query": [picture()], "question": "what is it?", **fields})
        return asyncio.run(asked(library, form))

    assert of() == (["a red boat"], Answer("a", "a red boat"))
    assert painters["a"].asked == [(bytes(3), "what is it?")]
    for model, said in (("b", "answered with nothing"), ("c", "does not answer questions about pictures")):
        with pytest.raises(ApiError, match=said):
            of(model=model)
    assert of(question=None, query="a") == (["a"], None)
