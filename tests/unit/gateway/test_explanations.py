"""Which fault in a client's own body is told, and where it lies, whatever types pydantic tried on the way."""

from __future__ import annotations

import json
import re
import time
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from gateway import errors
from gateway.retrieval.schema import SearchRequest
from gateway.text.items import ResponseRequest
from gateway.text.schema import ChatRequest, CompletionRequest

USER = {"role": "user", "content": "x"}
NAMED = {"type": "function", "function": {"name": "a"}}
COMPARED = {"type": "eq", "key": "a", "value": 1}
FORMAT = {"type": "json_schema", "name": "a", "schema": {}, "foo": 1}


@pytest.fixture(scope="module")
def client() -> TestClient:
    app = FastAPI()
    errors.install(app)

    @app.post("/chat")
    def chat(_: ChatRequest) -> None: ...

    @app.post("/completion")
    def completion(_: CompletionRequest) -> None: ...

    @app.post("/response")
    def response(_: ResponseRequest) -> None: ...

    @app.post("/search")
    def search(_: SearchRequest, most: int = 1) -> None: ...

    return TestClient(app)


def part(**fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": [fields]}]}


def item(**fields: Any) -> dict[str, Any]:
    return {"input": [{"role": "user", "content": [fields]}]}


BODIES: dict[str, dict[str, Any]] = {
    "chat": {"model": "m", "messages": [USER]},
    "completion": {"model": "m", "prompt": "x"},
    "response": {"model": "m", "input": "x"},
    "search": {"query": "x"},
}


@pytest.mark.parametrize(
    ("route", "fields", "place"),
    [
        ("chat", {"a b": 1}, "a b"),
        ("chat", {"str": 1}, "str"),
        ("chat", {"messages": [{**USER, "text": 1}]}, "messages[0].text"),
        ("chat", part(type="text", text="x", foo=1), "messages[0].content[0].foo"),
        (
            "chat",
            part(type="image_url", image_url={"url": "x", "a": 1}),
            "messages[0].content[0].image_url.a",
        ),
        ("chat", {"stream_options": {"foo": 1}}, "stream_options.foo"),
        ("chat", {"tools": [{**NAMED, "foo": 1}]}, "tools[0].foo"),
        ("chat", {"tool_choice": {**NAMED, "foo": 1}}, "tool_choice.foo"),
        ("response", {"input": [{"type": "message", **USER, "foo": 1}]}, "input[0].foo"),
        ("response", item(type="input_text", text="x", foo=1), "input[0].content[0].foo"),
        ("response", {"reasoning": {"foo": 1}}, "reasoning.foo"),
        ("response", {"text": {"format": FORMAT}}, "text.format.foo"),
        ("search", {"filters": {**COMPARED, "foo": 1}}, "filters.foo"),
    ],
)
def test_an_unknown_field_is_named_with_its_path(
    client: TestClient, route: str, fields: Any, place: str
) -> None:
    error = client.post(f"/{route}", json={**BODIES[route], **fields}).json()["error"]
    assert (error["param"], error["code"]) == (place, "unknown_parameter")
    assert error["message"] == f"unknown field {place!r}; remove it"


@pytest.mark.parametrize(
    ("route", "fields", "told"),
    [
        ("chat", {"messages": [5]}, "messages[0] must be an object, not 5"),
        ("chat", {"messages": [{"role": "usr", "content": [{"type": "text"}]}]}, "messages[0].role must be"),
        ("chat", part(type="text"), "messages[0].content[0].text is missing; send it"),
        ("chat", part(type="text", text=None), "messages[0].content[0].text is missing; send it"),
        ("chat", part(type="text", text={"text": "x"}), "messages[0].content[0].text must be a valid string"),
        ("chat", part(type="video"), "messages[0].content[0] has the type 'video'; send one of"),
        ("chat", {"tool_choice": "some"}, "tool_choice must be 'none', 'auto' or 'required', not \"some\""),
        ("chat", {"tool_choice": {"type": "custom"}}, "tool_choice has the type 'custom'; send one of"),
        ("chat", {"tool_choice": {"type": "function"}}, "tool_choice.function is missing"),
        ("chat", {"tools": [{"type": "code"}]}, "tools[0].type must be 'function', not \"code\""),
        ("chat", {"logit_bias": {"5": "x"}}, 'logit_bias.5 must be a valid number, not "x"'),
        ("chat", {"stop": 5}, "stop must be a valid string or a valid list, not 5"),
        ("completion", {"prompt": [[1], ["a"]]}, 'prompt[1][0] must be a valid integer, not "a"'),
        ("completion", {"prompt": ["a", 1]}, "prompt[1] must be a valid string, not 1"),
        ("completion", {"prompt": {}}, "prompt must be a valid string or a valid list, not an object"),
        ("completion", {"temperature": 2.5}, "temperature must be less than or equal to 2, not 2.5"),
        ("completion", {"logit_bias": {"a": 1}}, "logit_bias.a: 'a' is not a token id; send ids as the"),
        ("completion", {"stream_options": {"include_usage": "no!"}}, "stream_options.include_usage must"),
        ("response", item(type="text", text="x"), "input[0].content[0] has the type 'text'; send one of"),
        ("response", item(type="input_text", text=5), "input[0].content[0].text must be a valid string"),
        ("search", {"filters": {**COMPARED, "value": [1]}}, "filters: 'eq' compares with one value"),
        (
            "search",
            {"filters": {**COMPARED, "type": "equals"}},
            "filters has the type 'equals'; send one of 'eq'",
        ),
        ("search", {"filters": {**COMPARED, "key": 5}}, "filters.key must be a valid string, not 5"),
        ("search", {"filters": {"type": "and", "filters": 5}}, "filters.filters must be a valid list, not 5"),
        (
            "search",
            {"filters": {"type": "and", "filters": [{"type": "or", "filters": [{**COMPARED, "key": None}]}]}},
            "filters.filters[0].filters[0].key must be a valid string, not null",
        ),
        (
            "response",
            {"input": [{**USER, "content": [{"type": "input_text"}], "message": {"content": []}}]},
            "input[0].content[0].text is missing; send it",
        ),
        ("response", {"input": [{"message": USER}]}, "input[0].role is missing; send it"),
        ("response", {"input": [{**USER, "content": 5, "message": "x"}]}, "input[0].content must be a valid"),
        ("response", item(type="input_text", file_id="a"), "input[0].content[0].text is missing"),
        ("chat", {"tool_choice": 5}, "tool_choice must be 'none', 'auto' or 'required' or an object, not 5"),
        ("chat", part(type="video" * 50), "messages[0].content[0] has the type 'video"),
        ("chat", {"max_tokens": "1" * 5000}, "max_tokens must be a valid integer, not"),
        ("search", {"query": "x" * 5000}, "query has 5000 characters; send 4096 at most"),
    ],
)
def test_what_is_wrong_is_told_of_the_type_that_a_value_has(
    client: TestClient, route: str, fields: Any, told: str
) -> None:
    body = json.dumps({**BODIES[route], **fields})  # halves of surrogate pairs, too
    headers = {"Content-Type": "application/json"}
    error = client.post(f"/{route}", content=body, headers=headers).json()["error"]
    assert error["param"] == re.split(r"\W", told)[0]
    assert error["message"].startswith(told)


def test_a_parameter_of_the_query_is_named(client: TestClient) -> None:
    error = client.post("/search?most=many", json=BODIES["search"]).json()["error"]
    assert (error["param"], error["message"]) == ("most", 'most must be a valid integer, not "many"')


def test_thousands_of_faults_are_told_at_once(client: TestClient) -> None:
    """Of keys with half a surrogate pair, pydantic names none as it was sent."""
    biases = {f"\ud800{i}": "x" for i in range(4000)}
    body = json.dumps({**BODIES["chat"], "logit_bias": biases})
    began = time.process_time()
    error = client.post("/chat", content=body, headers={"Content-Type": "application/json"}).json()["error"]
    assert error["message"] == 'logit_bias must be a valid number, not "x"'
    assert time.process_time() - began < 2
