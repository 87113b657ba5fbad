"""The routes of retrieval in front of fakes: where it is off, and where a database is down."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import structlog
from fastapi.testclient import TestClient

from conch.deployment import Chat, Pool
from conch.errors import ApiError
from conch.pictures import Picture
from gateway.admission import Admission
from gateway.console.routes import retrieval
from gateway.metrics import GatewayMetrics
from gateway.retrieval.answerer import ServedAnswerer, asked
from gateway.retrieval.schema import SearchRequest
from gateway.retrieval.service import open_retrieval
from gateway.settings import Settings
from retrieval.library import Item

from .application import FakeTriton, application, linked, refuses
from .test_chat_pictures import TEMPLATE
from .test_embeddings import MINILM as MINI
from .test_embeddings import FakeTriton as Embedding


@pytest.fixture
def down(tmp_path: Path) -> Iterator[TestClient]:
    """SQLite in a folder that is not there yet."""
    urls = {
        "documents_url": f"sqlite:{tmp_path}/later/documents.sqlite",
        "vectors_url": f"unix:{tmp_path}/nobody",
    }
    with application(tmp_path, MINI, triton=Embedding(), **urls) as client:
        yield client


def sent(client: TestClient, **fields: str) -> Any:
    return client.post("/v1/files", files={"file": ("a.txt", b"a")}, data=fields)


def test_where_it_is_off_it_says_how_it_is_switched_on(tmp_path: Path) -> None:
    with application(tmp_path, MINI, triton=Embedding()) as client:
        for path in ("/v1/files", "/v1/vector_stores", "/v1/vector_stores/a/files"):
            refuses(client.get(path), None, "docs/retrieval.md", 404)


def test_a_document_database_that_is_down_is_named_and_comes_back(down: TestClient, tmp_path: Path) -> None:
    answer = down.get("/v1/files")
    refuses(answer, None, "the document database (SQLite) does not answer", 503)
    assert answer.headers["retry-after"]
    assert sent(down, purpose="assistants").status_code == 503
    (tmp_path / "later").mkdir()
    assert down.get("/v1/files").json()["data"] == []
    made = sent(down, purpose="assistants").json()
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
    answer = sent(down, **fields)
    assert answer.status_code == 400
    assert said in answer.json()["error"]["message"]


def picture() -> dict[str, Any]:
    return linked("data:image/png;base64,AAAA")


@pytest.mark.parametrize(
    ("fields", "param", "said"),
    [
        ({"query": ""}, "query", "query"),
        ({"query": "a", "max_num_results": 51}, "max_num_results", "max_num_results"),
        ({"query": "a", "rewrite_query": True}, "rewrite_query", "rewrite_query must be false"),
        ({"query": "a", "filters": {"type": "and", "filters": []}}, "filters", "send at least 1"),
        ({"query": [picture()]}, "query", "no model of this vector store reads pictures"),
        ({"query": [linked("http://a/b.png")]}, "query", "[0] is a remote URL"),
        ({"query": [{"type": "text", "text": ""}]}, "query", "a text of 0 characters"),
        ({"query": ["a", {"type": "audio"}]}, "query", "a text, or an object whose type is"),
        ({"query": []}, "query", "query"),
        ({"query": [picture()] * 33}, "query", "query"),
        ({"query": ["a" * 5000]}, "query", "a text of 5000 characters"),
        ({"query": picture()}, "query", "query"),
        ({"query": [picture()], "question": "what is it?"}, "question", "this deployment serves none"),
        ({"query": "a", "question": "what is it?"}, "question", "requires query to be exactly one picture"),
        ({"query": [picture()] * 2, "question": "what?"}, "question", "to be exactly one picture"),
        ({"query": "a", "model": "mini"}, "model", "send a question"),
    ],
)
def test_queries_are_checked(
    down: TestClient, tmp_path: Path, fields: dict[str, Any], param: str | None, said: str
) -> None:
    (tmp_path / "later").mkdir()
    store = down.post("/v1/vector_stores", json={}).json()["id"]
    refuses(down.post(f"/v1/vector_stores/{store}/search", json=fields), param, said)


HALF = {"max_chunk_size_tokens": 100, "chunk_overlap_tokens": 51}


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"expires_after": {"anchor": "last_active_at", "days": 3}}, "expires_after is not supported"),
        ({"file_ids": ["a"], "chunking_strategy": {"type": "static", "static": HALF}}, "not exceed half"),
    ],
)
def test_stores_are_checked(down: TestClient, tmp_path: Path, fields: dict[str, Any], said: str) -> None:
    (tmp_path / "later").mkdir()
    answer = down.post("/v1/vector_stores", json=fields)
    assert answer.status_code == 400
    assert said in answer.json()["error"]["message"]


class Painter:
    """A vision-language model that always says the same."""

    def __init__(self, says: str) -> None:
        self.says = says
        self.asked: list[tuple[bytes, str]] = []

    async def answer(self, picture: Picture, question: str, request_id: str) -> str:
        assert request_id == "mine"
        self.asked.append((picture.data, question))
        return self.says


def test_the_answer_to_a_question_is_searched_for() -> None:
    """By the model that is named, or the first; one that says nothing, or is not there, is a 400."""
    painters = {"a": Painter(" a red boat\n"), "b": Painter(" \n")}
    metrics = GatewayMetrics()

    def of(**fields: Any) -> tuple[list[Item], dict[str, str]]:
        form = SearchRequest.model_validate({"query": [picture()], "question": "what is it?", **fields})
        return asyncio.run(asked(painters, form, metrics, "mine"))  # type: ignore[arg-type]

    assert of() == (["a red boat"], {"model": "a", "text": "a red boat"})
    assert painters["a"].asked == [(bytes(3), "what is it?")]
    for model, said in (("b", "got an empty answer"), ("c", "does not answer questions about pictures")):
        with pytest.raises(ApiError, match=said):
            of(model=model)
    assert of(question=None, query="a") == (["a"], {})
    assert counted(metrics) == {("a", "answered"): 1, ("b", "refused"): 1}


def counted(metrics: GatewayMetrics) -> dict[tuple[str, str], float]:
    """How many questions, by model and outcome."""
    return {
        (sample.labels["model"], sample.labels["outcome"]): sample.value
        for family in metrics.questions.collect()
        for sample in family.samples
        if sample.name.endswith("_count") and sample.value
    }


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (ApiError(503, "no room"), "unavailable"),
        (ApiError(400, "no"), "refused"),
        (asyncio.CancelledError(), "left"),
        (KeyError("a fault"), "failed"),
    ],
)
def test_how_a_question_ended(error: BaseException, outcome: str, capsys: pytest.CaptureFixture[str]) -> None:
    """It is counted, and logged with the request's id and none of its words."""
    metrics = GatewayMetrics()
    own = structlog.contextvars.bound_contextvars(request_id="mine")
    with own, pytest.raises(type(error)), metrics.question("a"):
        raise error
    assert counted(metrics) == {("a", outcome): 1}
    line = json.loads(capsys.readouterr().out)
    wanted = {"event": "question", "model": "a", "outcome": outcome, "request_id": "mine"}
    assert {name: line[name] for name in wanted} == wanted


ABLE = frozenset({"completion", "pictures"})
LOOKS = Pool("looks", "llava", (0,), capabilities=ABLE, positions=64, chat=Chat(TEMPLATE))


def served(triton: FakeTriton, room: Admission | None = None) -> ServedAnswerer:
    return ServedAnswerer(triton, LOOKS, room or Admission(2, "requests for text"))  # type: ignore[arg-type]


@pytest.mark.parametrize("content", ["cmVk", b"red"])
def test_a_model_is_asked_as_chat_asks_it(content: str | bytes) -> None:
    """The picture before the question, greedily, with half of the positions for the answer."""
    triton = FakeTriton()
    assert asyncio.run(served(triton).answer(Picture(content), "which colour?", "mine")) == " one two"
    (fields,) = triton.asked
    assert fields["image_urls"].tolist() == [[b"data:application/octet-stream;base64,cmVk"]]
    assert fields["text_input"].item().decode() == "USER: <image>\nwhich colour? ASSISTANT:"
    assert (fields["top_k"].item(), fields["max_tokens"].item()) == (1, 32)


@pytest.mark.parametrize(
    ("error", "param"),
    [
        (ApiError(400, "image_urls[0] is not a picture"), "query"),
        (ApiError(400, "the prompt has 99 tokens"), "question"),
        (ApiError(503, "the model is not ready"), None),
    ],
)
def test_what_the_model_refuses_names_the_field(error: ApiError, param: str | None) -> None:
    triton = FakeTriton()
    triton.error = error
    with pytest.raises(ApiError) as refused:
        asyncio.run(served(triton).answer(Picture("cmVk"), "which colour?", "mine"))
    assert (refused.value.status, refused.value.param) == (error.status, param)
    assert refused.value.message == error.message


def test_a_question_takes_a_place_of_text() -> None:
    """None left: a 503, and the model is not asked. A question that is surely too long: a 400."""
    triton, room = FakeTriton(), Admission(1, "requests for text")
    with room.place(LOOKS), pytest.raises(ApiError, match="requests for text at this gateway"):
        asyncio.run(served(triton, room).answer(Picture("cmVk"), "which colour?", "mine"))
    with pytest.raises(ApiError, match="question has"):
        asyncio.run(served(triton, room).answer(Picture("cmVk"), "a" * 9000, "mine"))
    assert triton.asked == []


def test_who_answers_is_served_and_has_a_template(tmp_path: Path) -> None:
    """Of a deployment's pools those that look, write and have a chat template; the console is told."""
    pools = (
        MINI,
        LOOKS,
        replace(LOOKS, model_id="no-template", chat=None),
        replace(LOOKS, model_id="reads", capabilities=frozenset({"completion"})),
    )
    settings = Settings(
        deployment=tmp_path / "deployment.json",
        documents_url=f"sqlite:{tmp_path}/documents.sqlite",
        vectors_url=f"unix:{tmp_path}/nobody",
    )
    served = {pool.model_id: pool for pool in pools}
    opened = open_retrieval(settings, served, None, *[Admission(1, "x")] * 2)  # type: ignore[arg-type]
    assert opened and list(opened.answerers) == ["looks"]
    services = SimpleNamespace(retrieval=opened, settings=settings)
    told = retrieval(services)  # type: ignore[arg-type]
    assert told and told["embedders"] == [{"id": "mini", "pictures": False}]
    assert told["answerers"] == ["looks"]
