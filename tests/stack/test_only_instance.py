"""A model with one instance: what asks for it while its server is killed or restarted waits for an answer."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable

import httpx
import numpy as np
import pytest
import tritonclient.grpc as grpc

from conch.names import AT_ONCE

from .clients import Load, tensors
from .conftest import TEXT_MODELS, Stack, until
from .processes import stub, tritonserver
from .test_text import openings

MODEL = "mini-gpt2"
INDEX = TEXT_MODELS.split(",").index(MODEL)
TOKENS = 24
PROMPT = openings(1)[0]
BODY = {"text_input": PROMPT, "max_tokens": TOKENS}
FAULTS: dict[str, tuple[Callable[[Stack], int], int]] = {
    "server killed": (lambda stack: tritonserver(stack, INDEX), signal.SIGKILL),
    "engine killed": (lambda stack: stub(stack, INDEX, "tensorrt_llm_stream"), signal.SIGKILL),
    "server asked to end": (lambda stack: tritonserver(stack, INDEX), signal.SIGTERM),
}


def chat(stack: Stack) -> str:
    answer = stack.openai().completions.create(model=MODEL, prompt=PROMPT, max_tokens=TOKENS, temperature=0)
    return answer.choices[0].text


def generated(stack: Stack, **headers: str) -> httpx.Response:
    path = f"{stack.kserve}/models/{MODEL}/v2/models/tensorrt_llm_bls/generate"
    return httpx.post(path, json=BODY, headers=headers, timeout=100)


def by_grpc(stack: Stack) -> str:
    asked, most = np.array([[PROMPT.encode()]], object), np.array([[TOKENS]], np.int32)
    with grpc.InferenceServerClient(stack.grpc) as client:
        inputs = tensors(grpc, text_input=asked, max_tokens=most)
        answer = client.infer("tensorrt_llm_bls", inputs, headers={"x-model-id": MODEL})
    return str(answer.as_numpy("text_output").item().decode())


@pytest.mark.parametrize("fault", FAULTS)
def test_nothing_is_lost(text_stack: Stack, fault: str) -> None:
    """Of the gateway, and of Triton's own calls over HTTP and gRPC; each answer is the right one."""
    right, old = chat(text_stack), tritonserver(text_stack, INDEX)

    def same(text: str) -> None:
        assert text == right

    def back() -> bool:
        """Another server answers what does not wait for it."""
        at_once = generated(text_stack, **{AT_ONCE: "1"}).status_code == 200
        return at_once and tritonserver(text_stack, INDEX) != old

    with (
        Load(lambda: same(chat(text_stack)), 2) as sdk,
        Load(lambda: same(generated(text_stack).raise_for_status().json()["text_output"]), 2) as http,
        Load(lambda: same(by_grpc(text_stack)), 2) as raw,
    ):
        for load in (sdk, http, raw):
            load.wait_for(3, 60)
        find, number = FAULTS[fault]
        os.kill(find(text_stack), number)
        until("another server answers", back, 60)
        for load in (sdk, http, raw):
            load.wait_for(load.done + 3, 60)
    assert sdk.failed == http.failed == raw.failed == []


def test_a_stream_waits_too(text_stack: Stack) -> None:
    """One that begins while the server is away."""
    old = tritonserver(text_stack, INDEX)
    os.kill(old, signal.SIGKILL)
    while generated(text_stack, **{AT_ONCE: "1"}).status_code == 200:
        time.sleep(0.01)
    stream = text_stack.openai().completions.create(
        model=MODEL, prompt=PROMPT, max_tokens=TOKENS, temperature=0, stream=True, timeout=100
    )
    words = "".join(part.choices[0].text for part in stream if part.choices)
    assert tritonserver(text_stack, INDEX) != old
    assert words == chat(text_stack)
