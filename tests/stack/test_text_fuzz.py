"""Requests at random to the text routes: no 5xx, no hang, every refusal in OpenAI's shape."""

from __future__ import annotations

import json
from typing import Any

import httpx
from hypothesis import given, seed, settings
from hypothesis import strategies as st

from .conftest import Stack
from .test_fuzz import QUIET, SEED, judge_refusal

TEXT_QUIET = settings(QUIET, max_examples=80)
FIELDS = (
    "best_of",
    "echo",
    "frequency_penalty",
    "logit_bias",
    "logprobs",
    "max_tokens",
    "n",
    "presence_penalty",
    "prompt",
    "seed",
    "stop",
    "stream",
    "stream_options",
    "suffix",
    "temperature",
    "top_p",
    "user",
    "bad_words",
    "top_k",
    "min_tokens",
    "repetition_penalty",
    "length_penalty",
    "messages",
    "top_logprobs",
    "max_completion_tokens",
    "response_format",
    "model",
)
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 6),
    st.integers(),
    st.floats(),
    st.floats(0, 2),
    st.text(max_size=20),
    st.sampled_from(["\ud800", "\0", "</s>", " "]),
)
VALUES = st.one_of(
    SCALARS,
    st.lists(SCALARS, max_size=4),
    st.dictionaries(st.one_of(st.text(max_size=5), st.integers(-1, 2100).map(str)), SCALARS, max_size=4),
)
MESSAGES = st.lists(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["user", "assistant", "system", "tool"]), "content": VALUES}
    ),
    max_size=3,
)


def judge(answer: httpx.Response) -> None:
    assert answer.status_code < 500, answer.text
    if answer.status_code >= 400:
        judge_refusal(answer)
    elif answer.headers["content-type"].startswith("text/event-stream"):
        assert answer.text.endswith("data: [DONE]\n\n"), answer.text
        assert '"error"' not in answer.text, answer.text
    else:
        assert answer.json()["choices"]


@TEXT_QUIET
@seed(SEED)
@given(
    fields=st.dictionaries(st.sampled_from(FIELDS), VALUES, max_size=4),
    messages=MESSAGES,
    model=st.sampled_from(["mini-gpt2", "mini-t5"]),
    route=st.sampled_from(["completions", "completions", "chat/completions"]),
)
def test_fields_at_random(
    text_stack: Stack, fields: dict[str, Any], messages: Any, model: str, route: str
) -> None:
    """Good requests with up to four fields of any value."""
    good: dict[str, Any] = (
        {"prompt": "On Monday"}
        if route == "completions"
        else {"messages": messages or [{"role": "user", "content": "On Monday"}]}
    )
    body = json.dumps({"model": model, "max_tokens": 4, **good, **fields})
    url, kind = f"{text_stack.url}/v1/{route}", {"content-type": "application/json"}
    judge(httpx.post(url, content=body, headers=kind, timeout=60))
