"""The text routes of the gateway, with a Triton that says what it is told to."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from conch.deployment import Chat
from conch.errors import ApiError
from gateway.text.calls import questions
from gateway.text.generator import StopSequenceFilter, TextDelta, Token
from gateway.text.responses import CompletionWriter
from gateway.text.schema import MOST_TEXTS, MOST_WORDS, CompletionRequest

from .application import CALL, Gateway, chat, chunks, refuses, text_gateway

EMOJI = (r"bytes:\xf0\x9f", r"bytes:\x98\x80")  # two tokens of one character
TEMPLATE = (
    "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system here') }}{% endif %}{{ "
    "m.name or '' }}{{ m.content }}{% endfor %}"
)
SETTINGS = {"positions": 64, "generations_per_instance": 2}


@pytest.mark.parametrize(
    ("asked", "sent"),
    [
        ({}, {"temperature": 0.7, "top_p": 0.8, "top_k": 20, "repetition_penalty": 1.1}),
        ({"temperature": 0}, {"top_k": 1, "repetition_penalty": 1.1}),
        (
            {"temperature": 1, "top_p": 1, "top_k": 0, "repetition_penalty": 1},
            {"temperature": 1.0, "top_p": 1.0, "repetition_penalty": 1.0},
        ),
    ],
)
@pytest.mark.parametrize("path", ["chat/completions", "responses"])
def test_sampling_as_the_checkpoint_recommends_it(
    tmp_path: Path, path: str, asked: dict[str, float], sent: dict[str, float]
) -> None:
    """generation_config.json, unless the request says otherwise."""
    both = {"temperature", "top_p"}
    if path == "responses" and not both >= set(asked):
        pytest.skip("the route has no such field")
    recommendation = {"temperature": 0.7, "top_p": 0.8, "top_k": 20.0, "repetition_penalty": 1.1}
    with text_gateway(tmp_path, Chat(TEMPLATE, sampling=recommendation)) as (client, fake):
        body = {"messages": [{"role": "user", "content": "hi"}]} if "chat" in path else {"input": "hi"}
        answer = client.post(f"/v1/{path}", json={"model": "mini", **body, **asked})
        assert answer.status_code == 200, answer.text
        found = {name: fake.asked[0][name].item() for name in recommendation if name in fake.asked[0]}
        assert found == pytest.approx(sent)
        if path == "responses":
            assert answer.json()["temperature"] == asked.get("temperature", 0.7)


def post(gateway: Gateway, **fields: Any) -> Any:
    return gateway[0].post("/v1/completions", json={"model": "mini", "prompt": "a b c", **fields})


def places(gateway: Gateway) -> int:
    inside: int = gateway[0].app_state["services"].generations.inside["mini"]
    return inside


@given(
    text=st.text("abc ", max_size=20),
    cuts=st.lists(st.integers(1, 4), min_size=1, max_size=6),
    stops=st.lists(st.text("abc ", min_size=1, max_size=4), max_size=4),
)
def test_texts_end_before_the_first_stop_sequence(text: str, cuts: list[int], stops: list[str]) -> None:
    """However the text comes in pieces, and no part of the sequence is shown before it is known."""
    ending, shown, at, n = StopSequenceFilter(stops), "", 0, 0
    while at < len(text) and not ending.stopped:
        shown += ending.add(text[at : at + cuts[n % len(cuts)]])
        at, n = at + cuts[n % len(cuts)], n + 1
    if not ending.stopped:
        shown += ending.add("", last=True)
    first = min((found for stop in stops if (found := text.find(stop)) >= 0), default=len(text))
    assert ending.stopped == any(stop in text for stop in stops)
    if len(stops) <= 1:
        assert shown == text[:first]
    assert text.startswith(shown)
    assert not any(stop in shown for stop in stops)


def form(**fields: Any) -> CompletionRequest:
    return CompletionRequest(model="mini", prompt="x", **fields)


def test_no_two_texts_of_a_request_have_the_same_seed() -> None:
    """Not those of equal prompts either, and nothing grows out of 64 bits."""
    asked = questions(form(n=3, seed=2**64 - 2), ["a", "a"], 5, None)
    seeds = [question["seed"] for question in asked]
    assert len(set(seeds)) == 6
    assert all(0 <= seed < 2**64 for seed in seeds)
    assert questions(form(n=3, seed=2**64 - 2), ["a", "a"], 5, None) == asked


@pytest.mark.parametrize(
    ("fields", "sampling"),
    [
        ({}, {"temperature": 1.0, "top_p": 1.0}),
        ({"temperature": 0}, {"top_k": 1}),
        ({"top_p": 0}, {"top_k": 1}),
        ({"temperature": 0.5, "top_k": 7}, {"temperature": 0.5, "top_p": 1.0, "top_k": 7}),
    ],
)
def test_choice(fields: dict[str, Any], sampling: dict[str, Any]) -> None:
    """OpenAI's defaults are a random choice; 0 is none at all."""
    (question,) = questions(form(**fields), ["a"], 5, None)
    assert {
        name: value for name, value in question.items() if name in ("temperature", "top_p", "top_k")
    } == sampling


def test_beams_are_one_question() -> None:
    (question,) = questions(form(n=2, best_of=4), ["a"], 5, None, beams=4)
    assert (question["beam_width"], question["num_return_sequences"]) == (4, 2)
    assert "temperature" not in question


def test_log_probs_of_pieces_have_offsets_in_the_whole_text() -> None:
    """Text that was held back does not move the tokens after it."""
    written = CompletionWriter("mini", log_probs=True)
    pieces = [
        TextDelta(" one", (Token(" one", -1.0),)),
        TextDelta(""),
        TextDelta(" two three", (Token(" two", -1.0), Token(" three", -1.0))),
    ]
    offsets = [written.chunks(0, piece)[0]["choices"][0]["logprobs"]["text_offset"] for piece in pieces]
    assert offsets == [[0], [], [4, 8]]


def test_the_chosen_token_is_among_the_likeliest() -> None:
    """As at OpenAI; of two that read alike the likelier counts."""
    token = Token(" x", -3.0, (("\ufffd", -1.0), ("\ufffd", -2.0)))
    found = CompletionWriter("mini", log_probs=True).body([TextDelta(" x", (token,), "stop")], {})["choices"][
        0
    ]["logprobs"]
    assert found["top_logprobs"] == [{"\ufffd": -1.0, " x": -3.0}]


def test_tokens_that_are_parts_of_a_character(gateway: Gateway) -> None:
    """Their bytes make the text, alone and before a stop sequence inside a later token; offsets count its
    characters.
    """
    gateway[1].words = (*EMOJI, " elephant")
    for stop, text in ((None, "😀 elephant"), (["lep"], "😀 e")):
        for stream in (False, True):
            answer = chat(gateway, logprobs=True, stop=stop, stream=stream)
            rows = [row["choices"][0] for row in (chunks(answer) if stream else [answer.json()])]
            found = [one for row in rows for one in (row["logprobs"] or {}).get("content", [])]
            assert [one["token"] for one in found] == [*EMOJI, " elephant"]
            assert bytes(byte for one in found for byte in one["bytes"]).decode() == "😀 elephant"
            shown = [row["delta"].get("content", "") if stream else row["message"]["content"] for row in rows]
            assert "".join(shown) == text
    offsets = post(gateway, logprobs=0).json()["choices"][0]["logprobs"]["text_offset"]
    assert offsets == [0, 1, 1]


def test_a_whole_answer(gateway: Gateway) -> None:
    """Two prompts, two texts each."""
    answer = post(gateway, prompt=["a b c", "d"], n=2, max_tokens=2, echo=True).json()
    assert [choice["text"] for choice in answer["choices"]] == ["a b c one two"] * 2 + ["d one two"] * 2
    assert [choice["finish_reason"] for choice in answer["choices"]] == ["length"] * 4
    assert answer["usage"] == {"prompt_tokens": 4, "completion_tokens": 8, "total_tokens": 12}


def test_null_is_left_out(gateway: Gateway) -> None:
    """OpenAI's clients send it for defaults."""
    penalties = ("presence_penalty", "frequency_penalty")
    fields = ("n", "stream", "echo", "max_tokens", "logprobs", "stop", "suffix", "best_of", *penalties)
    assert post(gateway, **dict.fromkeys((*fields, "temperature", "seed"))).status_code == 200
    assert post(gateway, model=None).json()["error"]["message"] == "model is missing; send it"


def test_usage_of_a_stream_does_not_depend_on_who_is_first(gateway: Gateway) -> None:
    gateway[1].order = [2, 4, 5, 0, 1, 3]
    found = chunks(
        post(gateway, prompt=["a b c", "d"], n=3, stream=True, stream_options={"include_usage": True})
    )
    assert found[0]["choices"][0]["index"] == 3
    assert found[-1]["usage"] == {"prompt_tokens": 4, "completion_tokens": 12, "total_tokens": 16}
    assert all(chunk["usage"] is None for chunk in found[:-1])


@pytest.mark.parametrize("stop", [None, " two", "ne t", "o"])
@pytest.mark.parametrize("together", [1, 2], ids=["each", "together"])
def test_streams_say_the_same_as_answers(gateway: Gateway, stop: str | None, together: int) -> None:
    """Text, tokens, offsets, alternatives and the reason of the end, however many tokens come at once."""
    gateway[1].together = together
    whole = post(gateway, logprobs=2, stop=stop).json()["choices"][0]
    found = [chunk["choices"][0] for chunk in chunks(post(gateway, logprobs=2, stop=stop, stream=True))]
    assert "".join(choice["text"] for choice in found) == whole["text"]
    for name in ("tokens", "text_offset", "token_logprobs", "top_logprobs"):
        shown = [item for choice in found for item in choice["logprobs"][name] or []]
        assert shown == whole["logprobs"][name], name
    assert found[-1]["finish_reason"] == whole["finish_reason"]


@pytest.mark.parametrize(
    "error",
    [ApiError(503, "lost; send it again", code="unavailable"), KeyError("text_output")],
    ids=["known", "unknown"],
)
def test_an_error_in_the_middle_ends_the_stream(gateway: Gateway, error: Exception) -> None:
    """Never a stream that waits for ever; the place is free again."""
    gateway[1].error = error
    answer = post(gateway, stream=True, n=2)
    assert " one" in answer.text
    if isinstance(error, ApiError):
        assert chunks(answer)[-1]["error"]["code"] == "unavailable"
    assert places(gateway) == 0


def test_an_error_at_once_is_no_stream(gateway: Gateway) -> None:
    """A plain answer with a status."""
    gateway[1].words = ()
    gateway[1].error = ApiError(400, "the text has 900 tokens, this model has 64 positions; shorten it")
    refuses(post(gateway), "prompt")
    assert places(gateway) == 0


@pytest.mark.parametrize(
    ("said", "param"),
    [
        ("max_tokens is 60; …", "max_tokens"),
        ("runtime_top_k is 99; …", "top_k"),
        ("bad_words_list has …", "bad_words"),
        ("stop_words_list has …", "stop"),
    ],
)
def test_what_the_model_refuses_names_the_callers_field(gateway: Gateway, said: str, param: str) -> None:
    gateway[1].error = ApiError(400, said)
    refuses(post(gateway), param)


HALF = "\ud800"
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"prompt": HALF}, "prompt"),
    ({"prompt": ["a", HALF]}, "prompt"),
    ({"stop": HALF}, "stop"),
    ({"bad_words": [HALF]}, "bad_words"),
    ({"prompt": HALF, "stream": True}, "prompt"),
    ({"top_k": 2**40}, "top_k"),
    ({"bad_words": ["x"] * (MOST_WORDS + 1)}, "bad_words"),
    ({"n": MOST_TEXTS + 1}, "n"),
    ({"prompt": ["a"] * (MOST_TEXTS + 1)}, "n"),
    ({"max_tokens": 64}, "max_tokens"),
    ({"seed": 2**64}, "seed"),
    ({"prompt": [1, 2]}, "prompt"),
    ({"prompt": [[1]]}, "prompt"),
    ({"prompt": []}, "prompt"),
    ({"logit_bias": {"a": 1}}, "logit_bias"),
    ({"temperature": float("nan")}, "temperature"),
    ({"logit_bias": {"1": float("inf")}}, "logit_bias"),
    ({"stop": ["a"] * 5}, "stop"),
    ({"prompt": "x" * 10000}, "prompt"),
    ({"tools": []}, "tools"),
    ({"min_tokens": 17}, "min_tokens"),
    ({"best_of": 17}, "best_of"),
    ({"best_of": 2, "n": 3}, "best_of"),
    ({"best_of": 3, "temperature": 0.5}, "best_of"),
    ({"best_of": 3, "stream": True}, "best_of"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"temperature": 2.5}, "temperature"),
    ({"suffix": "x"}, "suffix"),
    ({"echo": True, "logprobs": 1}, "echo"),
    ({"stop": ""}, "stop"),
    ({"stream_options": {"include_usage": True}}, "stream_options"),
    ({"speed": 3}, "speed"),
]


@pytest.mark.parametrize(
    ("fields", "param"), REFUSED, ids=[f"{param}-{i}" for i, (_, param) in enumerate(REFUSED)]
)
def test_forms_refuse_before_triton_is_asked(gateway: Gateway, fields: dict[str, Any], param: str) -> None:
    body = json.dumps({"model": "mini", "prompt": "x", **fields})
    answer = gateway[0].post("/v1/completions", content=body, headers={"content-type": "application/json"})
    refuses(answer, param)
    assert not gateway[1].asked


def test_a_chat(gateway: Gateway) -> None:
    """The template sees content, parts of it, and names."""
    content = [{"type": "text", "text": "a "}, {"type": "text", "text": "b"}]
    answer = chat(gateway, {"role": "user", "name": "Ann ", "content": content}, n=2)
    assert gateway[1].asked[0]["text_input"].item() == b"Ann a b"
    assert [choice["message"]["content"] for choice in answer.json()["choices"]] == ["one two"] * 2
    assert answer.json()["usage"]["prompt_tokens"] == 3


def test_a_chat_that_is_refused(gateway: Gateway) -> None:
    """By the template, or because its text is none."""
    for message, said in (
        ({"role": "system", "content": "x"}, "no system here"),
        ({"role": "user", "content": HALF}, "surrogate"),
    ):
        refuses(chat(gateway, message), "messages", said)


def test_an_answer_may_be_sent_back(gateway: Gateway) -> None:
    """As the official SDK does it: a message with all its fields, most of them null; and what changes no text
    is no error.
    """
    answer = chat(gateway, {"role": "user", "content": "x"}).json()["choices"][0]["message"]
    history = [
        {"role": "user", "content": "x"},
        {**answer, "refusal": None, "tool_calls": None, "annotations": []},
        {"role": "user", "content": "x"},
    ]
    plain = {"store": False, "metadata": {"run": "1"}, "service_tier": "auto"}
    assert chat(gateway, *history, **plain, tools=[], tool_choice="none").status_code == 200
    refuses(chat(gateway, *history, tools=[{"type": "function"}]), "tools")
    harmless = {
        "store": True,
        "reasoning_effort": "high",  # no variable of this template
        "verbosity": "low",
        "prompt_cache_retention": "24h",
    }
    assert chat(gateway, *history, **harmless).status_code == 200


@pytest.mark.parametrize(
    ("message", "says"),
    [
        ({"role": "bot"}, "].role must be 'system', 'developer', 'user', 'assistant' or 'tool', not \"bot\""),
        ({}, "]: content is missing; only an assistant's message with tool_calls may be without"),
        (
            {"role": "tool", "content": "x"},
            "]: a message of role tool has tool_call_id, the id of the call that it answers",
        ),
        ({"content": "x", "tool_calls": [CALL]}, "]: tool_calls belong to role assistant, not user"),
    ],
)
def test_a_bad_message_is_named(gateway: Gateway, message: dict[str, Any], says: str) -> None:
    answer = chat(gateway, {"role": "user", **message})
    refuses(answer, "messages")
    assert answer.json()["error"]["message"] == f"messages[0{says}"


def test_a_model_without_template_has_no_chat(tmp_path: Path) -> None:
    with text_gateway(tmp_path, None) as gateway:
        refuses(chat(gateway), "model", "does not support chat; models here that do: none")


def test_one_request_too_many_is_told_to_come_back(gateway: Gateway) -> None:
    gateway[0].app_state["services"].generations.inside["mini"] = 2
    answer = post(gateway, stream=True)
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "overloaded")
    assert int(answer.headers["retry-after"]) >= 1


def test_the_openapi_document_has_what_is_accepted(gateway: Gateway) -> None:
    """Fields that are ignored, null, an answer that is sent back, and errors in OpenAI's shape."""
    document = gateway[0].get("/openapi.json").json()
    answer = chat(gateway).json()["choices"][0]["message"]
    schema = {"type": "json_schema", "json_schema": {"name": "a", "strict": True, "schema": {}}}
    body = {
        "model": "mini",
        "messages": [answer, {"role": "user", "content": "so?"}],
        "response_format": schema,
        **dict.fromkeys(("n", "stream", "tools", "parallel_tool_calls", "functions")),
        "modalities": ["text"],
        "store": True,
    }
    validator = Draft202012Validator({**document, "$ref": "#/components/schemas/ChatRequest"})
    validator.validate(body)
    assert not validator.is_valid({**body, "stray": 1}) and not validator.is_valid(
        {**body, "functions": [{}]}
    )
    operation = document["paths"]["/v1/chat/completions"]["post"]
    assert set(operation["responses"]) == {"200", "4XX", "5XX"}
    error = Draft202012Validator({**document, "$ref": "#/components/schemas/Error"})
    error.validate(chat(gateway, n=0).json())
    described = document["components"]["schemas"]["Message"]["properties"]
    assert "description" not in described["name"]
