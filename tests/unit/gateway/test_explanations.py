"""Where in a client's own body a fault lies, whatever types pydantic tried on the way."""

from __future__ import annotations

from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from gateway import errors
from gateway.retrieval.schema import SearchRequest
from gateway.text.items import ResponseRequest
from gateway.text.schema import ChatRequest

USER = {"role": "user", "content": "x"}
NAMED = {"type": "function", "function": {"name": "a"}}


def said(part: dict[str, Any]) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": [part]}]}


@pytest.fixture(scope="module")
def client() -> TestClient:
    app = FastAPI()
    errors.install(app)

    @app.post("/chat")
    def chat(_: ChatRequest) -> None: ...

    @app.post("/response")
    def response(_: ResponseRequest) -> None: ...

    @app.post("/search")
    def search(_: SearchRequest) -> None: ...

    return TestClient(app)


@pytest.mark.parametrize(
    ("fields", "place"),
    [
        ({"a b": 1}, "a b"),
        ({"str": 1}, "str"),
        ({"messages": [{**USER, "text": 1}]}, "messages[0].text"),
        (said({"type": "text", "text": "x", "foo": 1}), "messages[0].content[0].foo"),
        (
            said({"type": "image_url", "image_url": {"url": "x", "foo": 1}}),
            "messages[0].content[0].image_url.foo",
        ),
        ({"stream_options": {"foo": 1}}, "stream_options.foo"),
        ({"tools": [{**NAMED, "foo": 1}]}, "tools[0].foo"),
        ({"tool_choice": {**NAMED, "foo": 1}}, "tool_choice.foo"),
    ],
)
def test_an_unknown_field_is_named_with_its_path(client: TestClient, fields: Any, place: str) -> None:
    error = client.post("/chat", json={"model": "m", "messages": [USER], **fields}).json()["error"]
    assert (error["param"], error["code"]) == (place, "unknown_parameter")
    assert error["message"] == f"unknown field {place!r}; remove it"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"messages": [5]}, "messages[0] must be an object, not 5"),
        (said({"type": "text"}), "messages[0].content[0].text is missing; send it"),
        (said({"type": "text", "text": 5}), "messages[0].content[0].text must be a valid string, not 5"),
        ({"tool_choice": {"type": "function"}}, "tool_choice.function is missing; send it"),
        ({"logit_bias": {"5": "x"}}, 'logit_bias.5 must be a valid number, not "x"'),
    ],
)
def test_a_wrong_value_is_named_with_its_path(client: TestClient, fields: Any, message: str) -> None:
    error = client.post("/chat", json={"model": "m", "messages": [USER], **fields}).json()["error"]
    assert error["message"] == message
    assert error["param"] in fields


@pytest.mark.parametrize(
    ("fields", "place"),
    [
        ({"input": [{"type": "message", **USER, "foo": 1}]}, "input[0].foo"),
        ({"reasoning": {"foo": 1}}, "reasoning.foo"),
        (
            {"text": {"format": {"type": "json_schema", "name": "a", "schema": {}, "foo": 1}}},
            "text.format.foo",
        ),
    ],
)
def test_responses_are_no_exception(client: TestClient, fields: Any, place: str) -> None:
    error = client.post("/response", json={"model": "m", "input": "x", **fields}).json()["error"]
    assert (error["param"], error["code"]) == (place, "unknown_parameter")


def test_a_fault_in_one_of_two_types_is_told(client: TestClient) -> None:
    """Not that the value is not of the other."""
    filters = {"type": "eq", "key": "a", "value": [1]}
    error = client.post("/search", json={"query": "x", "filters": filters}).json()["error"]
    assert "compares with one value" in error["message"]
