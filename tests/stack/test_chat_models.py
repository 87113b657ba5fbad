"""A chat model with weights that have learnt something, asked as clients ask: answers, tools, structured
answers.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal

import openai
import pytest
from pydantic import BaseModel, ConfigDict

from tests.ports import first_port

from .blocks import Block, those_of
from .conftest import Stack, portable, started

MODEL = "smollm2-135m-instruct-q4"
REQUESTS = int(os.environ.get("CHAT_REQUESTS", "24"))
KNOWN = {
    "What is the capital of France?": "Paris",
    "What is the capital of Italy?": "Rome",
    "What is the capital of Japan?": "Tokyo",
    "What is the capital of Germany?": "Berlin",
    "What is the capital of Spain?": "Madrid",
    "What is the capital of England?": "London",
    "What is the capital of Russia?": "Moscow",
    "What is the capital of Egypt?": "Cairo",
    "What is the capital of Greece?": "Athens",
    "What is the capital of Portugal?": "Lisbon",
    "What is 2 + 2?": "4",
    "What is 5 + 3?": "8",
    "How many days are in a week?": "7|seven",
    "How many months are in a year?": "12|twelve",
    "What planet do we live on?": "Earth",
    "What is the largest planet in the solar system?": "Jupiter",
    "Who wrote Romeo and Juliet?": "Shakespeare",
    "Who wrote Hamlet?": "Shakespeare",
    "What is the chemical symbol for gold?": "Au",
    "What is H2O?": "water",
    "What is the largest ocean?": "Pacific",
    "What colour is the sky on a clear day?": "blue",
    "Which animal says meow?": "cat",
    "Which language is spoken in Brazil?": "Portuguese",
    "Who painted the Mona Lisa?": "Leonardo|Vinci",
    "What is the opposite of hot?": "cold",
    "On which continent is Kenya?": "Africa",
    "In which country is Sydney?": "Australia",
    "What gas do plants absorb?": "carbon dioxide|CO2",
    "What is the first letter of the English alphabet?": "A",
}
CITIES = ("Rome", "Oslo", "Lima", "Cairo", "Tokyo", "Paris", "Quito", "Delhi")


class Weather(BaseModel):
    """Arguments of a tool."""

    model_config = ConfigDict(extra="forbid")

    city: str
    unit: Literal["celsius", "fahrenheit"]


class City(BaseModel):
    """A structured answer."""

    name: str
    country: str
    in_europe: bool


WEATHER = openai.pydantic_function_tool(Weather, name="get_weather", description="The weather of a city")
ADD = {
    "type": "function",
    "function": {
        "name": "add",
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "integer", "minimum": 0, "maximum": 99}},
            "required": ["a"],
            "additionalProperties": False,
        },
    },
}


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    home = tmp_path_factory.mktemp("chat")
    with started(portable(home, first_port("chat-models"), MODEL, 1, build=True)) as found:
        yield found


def asked(text: str, **fields: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": text}]
    return {"model": MODEL, "messages": messages, "max_tokens": 400, **fields}


def test_it_knows_something(client: openai.OpenAI) -> None:
    """Six of ten questions with undisputed answers. By CPU and precision it was 22 or 25 of 30; transformers
    with the same weights answers 21, in float32 and in bfloat16.
    """

    def answer(question: str) -> str:
        made = client.chat.completions.create(**asked(question, temperature=0, max_tokens=60))
        return made.choices[0].message.content or ""

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(answer, KNOWN))
    right = [bool(re.search(known, text)) for known, text in zip(KNOWN.values(), answers, strict=True)]
    assert sum(right) >= 0.6 * len(KNOWN), [
        text for text, found in zip(answers, right, strict=True) if not found
    ]


def test_required_calls_parse_and_validate(client: openai.OpenAI) -> None:
    """Whatever the model chooses at random, each call has a tool's name and arguments of its schema."""

    def call(n: int) -> str:
        text = f"What is the weather in {CITIES[n % len(CITIES)]}?"
        fields = asked(text, tools=[WEATHER, ADD], tool_choice="required", seed=n, temperature=0.3)
        made = client.chat.completions.create(**fields).choices[0]
        assert made.finish_reason == "tool_calls" and made.message.tool_calls
        (found,) = made.message.tool_calls
        arguments = json.loads(found.function.arguments)
        if found.function.name == "get_weather":
            Weather.model_validate(arguments)
        else:
            assert 0 <= arguments["a"] <= 99
        return str(found.function.name)

    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(call, range(REQUESTS))) <= {"get_weather", "add"}


def test_structured_answers_parse_and_validate(client: openai.OpenAI) -> None:
    """OpenAI's own helper, which makes the schema and reads the answer."""

    def parse(n: int) -> City | None:
        text = f"Where is {CITIES[n % len(CITIES)]}?"
        made = client.chat.completions.parse(**asked(text, seed=n, temperature=0.3), response_format=City)
        return made.choices[0].message.parsed

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(parse, range(REQUESTS)))


def test_a_tool_is_called_and_answered(client: openai.OpenAI) -> None:
    """Streamed by the helper; then its result goes back with the call as it came."""
    question = {"role": "user", "content": "What is the weather in Rome?"}
    named: Any = {"type": "function", "function": {"name": "get_weather"}}
    fields = asked("", tools=[WEATHER], tool_choice=named, temperature=0) | {"messages": [question]}
    with client.chat.completions.stream(**fields) as events:
        kinds = [event.type for event in events]
        made = events.get_final_completion().choices[0]
    assert "tool_calls.function.arguments.done" in kinds and made.finish_reason == "tool_calls"
    (call,) = made.message.tool_calls or []
    assert isinstance(call.function.parsed_arguments, Weather)
    called = {
        "id": call.id,
        "type": "function",
        "function": {"name": "get_weather", "arguments": call.function.arguments},
    }
    history = [
        question,
        {"role": "assistant", "content": None, "tool_calls": [called]},
        {"role": "tool", "tool_call_id": call.id, "content": "21 degrees and sunny"},
    ]
    answer = client.chat.completions.create(
        model=MODEL, messages=history, tools=[WEATHER], temperature=0, max_tokens=40
    )
    assert "21" in (answer.choices[0].message.content or "")


def test_the_responses_api(client: openai.OpenAI) -> None:
    """Whole, streamed, parsed into a type, and a tool that is called and answered."""
    question = "What is the capital of Japan?"
    whole = client.responses.create(model=MODEL, input=question, temperature=0, max_output_tokens=40)
    assert "Tokyo" in whole.output_text and whole.status == "completed"
    with client.responses.stream(model=MODEL, input=question, temperature=0, max_output_tokens=40) as events:
        for _ in events:
            pass
        assert events.get_final_response().output_text == whole.output_text
    parsed = client.responses.parse(model=MODEL, input="Where is Rome?", text_format=City, temperature=0)
    assert isinstance(parsed.output_parsed, City)
    tool: Any = {"type": "function", **WEATHER["function"]}
    made = client.responses.create(
        model=MODEL, input="What is the weather in Rome?", tools=[tool], tool_choice="required", temperature=0
    )
    (call,) = made.output
    assert call.type == "function_call"
    Weather.model_validate_json(call.arguments)
    history: Any = [
        {"role": "user", "content": "What is the weather in Rome?"},
        call.model_dump(exclude_none=True),
        {"type": "function_call_output", "call_id": call.call_id, "output": "21 degrees and sunny"},
    ]
    answer = client.responses.create(
        model=MODEL, input=history, tools=[tool], temperature=0, max_output_tokens=40
    )
    assert "21" in answer.output_text


@those_of("chat")
def test_the_examples_of_the_guide(stack: Stack, tmp_path: Path, block: Block) -> None:
    assert re.search("Tokyo|get_weather", block.run(stack, tmp_path, {}))
