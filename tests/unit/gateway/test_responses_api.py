"""POST /v1/responses: what the model is told, and answers as OpenAI's SDK types them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from .application import Gateway
from .test_tools import SCHEMA, TEMPLATE, guide

__all__ = ["TEMPLATE"]
EVENT: TypeAdapter[ResponseStreamEvent] = TypeAdapter(ResponseStreamEvent)
ADD = {"type": "function", "name": "add", "parameters": SCHEMA, "strict": True}
CALLED = {"type": "function_call", "call_id": "call_1", "name": "add", "arguments": '{"a": 1}'}


def ask(gateway: Gateway, **fields: Any) -> Any:
    return gateway[0].post("/v1/responses", json={"model": "mini", "input": "add 1", **fields})


def events(answer: Any) -> list[Any]:
    """Typed; each line's name is the event's own, and numbers count up."""
    blocks = [block.split("\n") for block in answer.text.strip().split("\n\n")]
    rows = [json.loads(data.removeprefix("data: ")) for _, data in blocks]
    assert [name.removeprefix("event: ") for name, _ in blocks] == [row["type"] for row in rows]
    assert [row["sequence_number"] for row in rows] == list(range(len(rows)))
    return [EVENT.validate_python(row) for row in rows]


def test_a_whole_answer(gateway: Gateway) -> None:
    """As the SDK types it; fields that change nothing are taken."""
    answer = ask(
        gateway, store=True, metadata={"a": "b"}, reasoning={"effort": "low"}, include=[], max_output_tokens=9
    )
    found = Response.model_validate(answer.json(), strict=True)
    assert (found.status, found.output_text, found.output[0].type) == ("completed", "one two", "message")
    assert found.metadata == {"a": "b"}
    assert found.usage and (found.usage.output_tokens, found.usage.input_tokens > 0) == (2, True)
    assert gateway[1].asked[-1]["max_tokens"].item() == 9


def test_a_stream(gateway: Gateway) -> None:
    """Deltas make the text; the last event has the whole response."""
    found = events(ask(gateway, stream=True))
    assert [event.type.removeprefix("response.") for event in found] == [
        "created", "in_progress", "output_item.added", "content_part.added", "output_text.delta",
        "output_text.delta", "output_text.done", "content_part.done", "output_item.done", "completed",
    ]  # fmt: skip
    assert "".join(event.delta for event in found if event.type == "response.output_text.delta") == "one two"
    last = found[-1].response
    assert last.output_text == "one two" and last.usage.output_tokens == 2 and found[0].response.id == last.id


@pytest.mark.parametrize("stream", [False, True])
def test_a_call(gateway: Gateway, stream: bool) -> None:
    """An item of its own; a text before it stays."""
    gateway[1].words = ("So: <tool_", 'call>{"name": "add", "arguments": {"a": 1}}</tool_call>')
    answer = ask(gateway, tools=[ADD], stream=stream)
    found = events(answer)[-1].response if stream else Response.model_validate(answer.json())
    text, call = found.output
    assert (text.content[0].text.strip(), call.name, call.arguments) == ("So:", "add", '{"a": 1}')
    if stream:
        done = [event for event in events(answer) if event.type == "response.function_call_arguments.done"]
        assert [(event.arguments, event.output_index, event.item_id) for event in done] == [
            ('{"a": 1}', 1, call.id)
        ]


def test_a_cut_answer_is_incomplete(gateway: Gateway) -> None:
    """Whole and streamed, with OpenAI's reason; so is a call."""
    gateway[1].words = ('{"name": "add", ', '"arguments": {"a"')
    only = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "add"}]}
    for stream in (False, True):
        answer = ask(gateway, max_output_tokens=2, stream=stream, tools=[ADD], tool_choice=only)
        found = events(answer)[-1].response if stream else Response.model_validate(answer.json())
        (call,) = found.output
        assert (call.type, call.arguments, call.status) == ("function_call", '{"a"', "incomplete")
    gateway[1].words = (" one", " two")
    for stream in (False, True):
        answer = ask(gateway, max_output_tokens=2, stream=stream)
        found = events(answer)[-1].response if stream else Response.model_validate(answer.json())
        assert (found.status, found.incomplete_details.reason) == ("incomplete", "max_output_tokens")


def test_the_model_is_told(gateway: Gateway) -> None:
    """Instructions, messages in parts, calls and their answers; a schema is a grammar."""
    history = [
        {
            "role": "user",
            "content": [{"type": "input_text", "text": "add "}, {"type": "input_text", "text": "1"}],
        },
        CALLED,
        {"type": "function_call_output", "call_id": "call_1", "output": "2"},
        {
            "type": "message",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "two", "annotations": []}],
        },
        {"role": "user", "content": "again"},
    ]
    form = {"type": "json_schema", "name": "x", "schema": SCHEMA, "strict": True}
    answer = ask(gateway, input=history, instructions="be brief", tools=[ADD], text={"format": form})
    assert answer.status_code == 200, answer.text
    prompt = gateway[1].asked[-1]["text_input"].item().decode()
    assert prompt.startswith("<|im_start|>system\nbe brief") and "<|im_start|>user\nadd 1<|im_end|>" in prompt
    assert (
        '<tool_call>\n{"name": "add", "arguments": {"a": 1}}' in prompt and "<tool_response>\n2\n" in prompt
    )
    assert "<|im_start|>assistant\ntwo<|im_end|>" in prompt
    assert guide(gateway[1]) == ("json_schema", SCHEMA)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"background": True}, "background"),
        ({"conversation": "c"}, "conversation"),
        ({"truncation": "auto"}, "truncation"),
        ({"include": ["message.output_text.logprobs"]}, "include"),
        ({"instructions": "x", "input": [{"role": "user", "content": "x"}] * 4096}, "input"),
        ({"tools": [{"type": "web_search"}]}, "tools"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"input": [CALLED]}, "input"),
        ({"input": [{"type": "reasoning", "summary": []}]}, "input"),
        ({"input": []}, "input"),
        ({"max_output_tokens": 100_000}, "max_output_tokens"),
        ({"text": {"format": {"type": "json_schema"}}}, "text.format"),
        ({"input": "x" * 100_000}, "input"),
    ],
)
def test_what_is_wrong_is_named(gateway: Gateway, fields: dict[str, Any], param: str) -> None:
    """By the field of this route."""
    answer = ask(gateway, **fields)
    error = answer.json()["error"]
    assert answer.status_code == 400 and error["param"].startswith(param), error
    assert error["message"].startswith(error["param"].partition("[")[0]), error


def test_a_failure_behind_other_events_is_an_event(gateway: Gateway) -> None:
    """As OpenAI has it: type error, with the message."""
    from conch.errors import ApiError

    gateway[1].error = ApiError(503, "gone")
    rows = [
        json.loads(line[6:])
        for line in ask(gateway, stream=True).text.split("\n")
        if line.startswith("data: ")
    ]
    assert (rows[-1]["type"], rows[-1]["message"]) == ("error", "gone")
