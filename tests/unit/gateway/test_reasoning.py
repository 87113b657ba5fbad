"""Reasoning before an answer: apart from the answer in both APIs, turned off by name, and sent back to the
model.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types.responses import Response

from conch.deployment import Chat
from gateway.text.filters import Phase, ReasoningFilter

from .application import CALL, Gateway, chat, chunks, refuses, text_gateway
from .test_responses_api import CALLED, events
from .test_tools import ADD, TAGGED

# Qwen 3's, shortened: it reads reasoning_content, and `enable_thinking=false` writes an empty one.
TEMPLATE = """
{%- for message in messages %}{{ message.role }}:
{%- if message.reasoning_content is string %}<think>{{ message.reasoning_content }}</think>{% endif %}
{{- message.content }}
{%- if message.tool_calls %} calls{% endif %}
{% endfor %}assistant:
{%- if enable_thinking is defined and enable_thinking is false %}<think>

</think>

{% endif %}{% if tools %}{% endif %}"""
OPENED = "{{ messages[0].content }} </think> <think>\n"  # as DeepSeek-R1's distilled models
THOUGHT = ("<thi", "nk>\nLet me", " see.\n</th", "ink>\n\nIt is", " 4.")


@pytest.fixture(autouse=True)
def answers_begin_with_reasoning(gateway: Gateway) -> None:
    gateway[1].words = THOUGHT


def streamed(answer: Any) -> dict[str, str]:
    """Everything that was sent, by the delta's field."""
    found: dict[str, str] = {}
    for chunk in chunks(answer):
        for choice in chunk["choices"]:
            for name, value in choice["delta"].items():
                found[name] = found.get(name, "") + value
    return found


def test_reasoning_is_not_the_answer(gateway: Gateway) -> None:
    """Whole and streamed."""
    message = chat(gateway).json()["choices"][0]["message"]
    assert (message["reasoning_content"], message["content"]) == ("Let me see.", "It is 4.")
    found = streamed(chat(gateway, stream=True))
    assert (found["reasoning_content"], found["content"]) == ("Let me see.", "It is 4.")


def test_an_answer_without_reasoning(gateway: Gateway) -> None:
    gateway[1].words = ("<this is", " 4.")
    assert chat(gateway).json()["choices"][0]["message"] == {
        "role": "assistant", "content": "<this is 4.", "refusal": None,
    }  # fmt: skip
    assert streamed(chat(gateway, stream=True)) == {"role": "assistant", "content": "<this is 4."}


def test_reasoning_that_is_cut(gateway: Gateway) -> None:
    """By max_tokens: there is no answer, and the reason says so."""
    gateway[1].words = ("<think>", " Let me")
    for cut in (chat(gateway, max_tokens=2), chat(gateway, max_tokens=2, stream=True)):
        assert '"finish_reason":"length"' in cut.text.replace(" ", "") and "<think>" not in cut.text
    choice = chat(gateway, max_tokens=2).json()["choices"][0]
    assert (choice["message"]["content"], choice["message"]["reasoning_content"]) == ("", "Let me")


def test_a_call_after_reasoning(gateway: Gateway) -> None:
    gateway[1].words = ("<think>", "I add.", "</think>\n", TAGGED)
    choice = chat(gateway, tools=[ADD]).json()["choices"][0]
    assert choice["finish_reason"] == "tool_calls" and choice["message"]["reasoning_content"] == "I add."
    assert choice["message"]["tool_calls"][0]["function"]["name"] == "add"


def test_a_grammar_leaves_no_room_for_it(gateway: Gateway) -> None:
    gateway[1].words = ('{"a": "<think>"}',)
    answer = chat(gateway, response_format={"type": "json_object"})
    assert answer.json()["choices"][0]["message"]["content"] == '{"a": "<think>"}'


def test_a_prompt_that_opens_it(tmp_path: Path) -> None:
    """Then the answer has only its end."""
    with text_gateway(tmp_path, Chat(OPENED)) as gateway:
        gateway[1].words = ("Let me see.", "</think>", "It is 4.")
        message = chat(gateway).json()["choices"][0]["message"]
    assert (message["reasoning_content"], message["content"]) == ("Let me see.", "It is 4.")


@pytest.mark.parametrize(
    ("fields", "off"),
    [
        ({}, False),
        ({"reasoning_effort": "none"}, True),
        ({"reasoning_effort": "low"}, False),
        ({"chat_template_kwargs": {"enable_thinking": False}}, True),
        ({"reasoning_effort": "none", "chat_template_kwargs": {"enable_thinking": True}}, False),
    ],
)
def test_it_can_be_turned_off(gateway: Gateway, fields: dict[str, Any], off: bool) -> None:
    chat(gateway, **fields)
    assert gateway[1].asked[-1]["text_input"].item().decode().endswith("</think>\n\n") == off
    if "reasoning_effort" in fields and len(fields) == 1:
        body = {"model": "mini", "input": "2 + 2?", "reasoning": {"effort": fields["reasoning_effort"]}}
        gateway[0].post("/v1/responses", json=body)
        assert gateway[1].asked[-1]["text_input"].item().decode().endswith("</think>\n\n") == off


def test_an_effort_that_is_no_text(gateway: Gateway) -> None:
    refuses(chat(gateway, reasoning_effort=3), "reasoning_effort")


@pytest.mark.parametrize(
    "names", [("reasoning_content",), ("reasoning",), ("reasoning", "reasoning_content")]
)
def test_the_model_reads_what_it_thought(gateway: Gateway, names: tuple[str, ...]) -> None:
    question = {"role": "user", "content": "2 + 2?"}
    called = {"role": "assistant", "content": "", "tool_calls": [CALL], **dict.fromkeys(names, "I add.")}
    chat(gateway, question, called, {"role": "tool", "tool_call_id": CALL["id"], "content": "4"})
    prompt = gateway[1].asked[-1]["text_input"].item().decode()
    assert "assistant:<think>I add.</think> calls" in prompt


def test_responses(gateway: Gateway) -> None:
    """An item of its own, which may be sent back."""
    body = {"model": "mini", "input": "2 + 2?"}
    whole = Response.model_validate(gateway[0].post("/v1/responses", json=body).json(), strict=True)
    found = events(gateway[0].post("/v1/responses", json={**body, "stream": True}))
    for response in (whole, found[-1].response):
        reasoning, message = response.output
        assert (reasoning.type, reasoning.content[0].text) == ("reasoning", "Let me see.")
        assert (message.content[0].text, response.output_text) == ("It is 4.", "It is 4.")
    kinds = list(dict.fromkeys(event.type.removeprefix("response.") for event in found))
    assert kinds.index("reasoning_text.done") < kinds.index("output_text.delta")
    at = {event.type: event.output_index for event in found if hasattr(event, "output_index")}
    assert (at["response.reasoning_text.delta"], at["response.output_text.delta"]) == (0, 1)
    result = {"type": "function_call_output", "call_id": CALLED["call_id"], "output": "4"}
    thought = whole.output[0].model_dump(exclude_none=True)
    sent = [{"role": "user", "content": "2 + 2?"}, thought, CALLED, result]
    assert gateway[0].post("/v1/responses", json={**body, "input": sent}).status_code == 200
    assert "<think>Let me see.</think> calls" in gateway[1].asked[-1]["text_input"].item().decode()


THOUGHT_OF = {"type": "reasoning", "summary": []}
USER, ASSISTANT = ({"role": role, "content": "x"} for role in ("user", "assistant"))


def reasoning(*texts: str) -> dict[str, Any]:
    return {**THOUGHT_OF, "content": [{"type": "reasoning_text", "text": text} for text in texts]}


@pytest.mark.parametrize(
    ("items", "prompt"),
    [
        # cut by max_output_tokens: it was the assistant's
        ([reasoning("A"), {"role": "user", "content": "go on"}], "assistant:<think>A</think>user:go on"),
        (
            [reasoning("A"), CALLED, reasoning("B"), {**CALLED, "call_id": "2"}, USER],
            "assistant:<think>A</think> callsassistant:<think>B</think> callsuser:x",
        ),
        ([CALLED, reasoning("B"), ASSISTANT], "assistant: callsassistant:<think>B</think>x"),
        ([THOUGHT_OF, ASSISTANT], "assistant:x"),
        ([CALLED, THOUGHT_OF, CALLED, USER], "assistant: callsuser:x"),
    ],
)
def test_reasoning_belongs_to_what_follows(gateway: Gateway, items: list[Any], prompt: str) -> None:
    sent = {"model": "mini", "input": [{"role": "user", "content": "q"}, *items]}
    assert gateway[0].post("/v1/responses", json=sent).status_code == 200
    asked = gateway[1].asked[-1]["text_input"].item().decode()
    assert asked.removesuffix("assistant:").removeprefix("user:q") == prompt


def test_reasoning_at_the_end_of_an_input(gateway: Gateway) -> None:
    sent = {"model": "mini", "input": [{"role": "user", "content": "q"}, reasoning("A")]}
    refuses(gateway[0].post("/v1/responses", json=sent), "input")


def test_a_cut_answer_has_whole_reasoning(gateway: Gateway) -> None:
    """Its end is told before the answer, though a possible call holds that back."""
    gateway[1].words = ("<think>a", "</think>\n", '{"a": 1')
    add = {"type": "function", "name": "add", "parameters": {}}
    body = {"model": "mini", "input": "2 + 2?", "tools": [add], "max_output_tokens": 3, "stream": True}
    found = events(gateway[0].post("/v1/responses", json=body))
    (done,) = [event.item for event in found if event.type == "response.output_item.done"][:1]
    thought, message = found[-1].response.output
    assert (found[-1].type, done.status, thought.status) == ("response.incomplete", "completed", "completed")
    assert message.status == "incomplete"


def test_a_grammar_turns_it_off(gateway: Gateway) -> None:
    chat(gateway, response_format={"type": "json_object"})
    assert gateway[1].asked[-1]["text_input"].item().decode().endswith("</think>\n\n")


def test_completions_take_the_field(gateway: Gateway) -> None:
    """It changes nothing there."""
    body = {"model": "mini", "prompt": "x", "reasoning_effort": "low"}
    assert gateway[0].post("/v1/completions", json=body).status_code == 200


def test_a_tag_that_the_prompt_has_too() -> None:
    assert ReasoningFilter(Phase.REASONING).add("<think>\nx</think>y", last=True) == ("x", "y")


@given(
    parts=st.lists(st.sampled_from(["<think>", "</think>", " so", "\n", "<", "4"]), max_size=6),
    cuts=st.lists(st.integers(1, 7), min_size=1, max_size=5),
    phase=st.sampled_from(list(Phase)),
)
def test_however_a_text_is_cut(parts: list[str], cuts: list[int], phase: Phase) -> None:
    """Its pieces are the whole text's."""
    text, filtered = "".join(parts), ReasoningFilter(phase)
    at, n, pieces = 0, 0, list[tuple[str, str]]()
    while at < len(text):
        pieces.append(filtered.add(text[at : at + cuts[n % len(cuts)]]))
        at, n = at + cuts[n % len(cuts)], n + 1
    pieces.append(filtered.add("", last=True))
    whole = ReasoningFilter(phase).add(text, last=True)
    assert tuple("".join(part) for part in zip(*pieces, strict=True)) == whole
