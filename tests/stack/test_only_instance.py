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
TOKENS = 24
PROMPT = openings(1)[0]
BODY = {"text_input": PROMPT, "max_tokens": TOKENS}
FAULTS: dict[str, Callable[[Stack, int], None]] = {
    "server killed": lambda stack, index: os.kill(tritonserver(stack, index), signal.SIGKILL),
    "engine killed": lambda stack, index: os.kill(stub(stack, index, "tensorrt_llm_stream"), signal.SIGKILL),
    "server asked to end": lambda stack, index: os.kill(tritonserver(stack, index), signal.SIGTERM),
}


@pytest.fixture
def index(text_stack: Stack) -> int:
    """The model's instance."""
    if text_stack.home is None:
        pytest.skip("needs the processes of a stack started here")
    return TEXT_MODELS.split(",").index(MODEL)


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


def wait_back(stack: Stack, index: int, old: int) -> None:
    """Until another server answers what does not wait for it."""

    def back() -> bool:
        return generated(stack, **{AT_ONCE: "1"}).status_code == 200 and tritonserver(stack, index) != old

    until("another server answers", back, 60)


@pytest.mark.parametrize("fault", FAULTS)
def test_nothing_is_lost(text_stack: Stack, index: int, fault: str) -> None:
    """Of the gateway, and of Triton's own calls over HTTP and gRPC; each answer is the right one."""
    right, old = chat(text_stack), tritonserver(text_stack, index)

    def same(text: str) -> None:
        assert text == right

    with (
        Load(lambda: same(chat(text_stack)), 2) as sdk,
        Load(lambda: same(generated(text_stack).raise_for_status().json()["text_output"]), 2) as http,
        Load(lambda: same(by_grpc(text_stack)), 2) as raw,
    ):
        for load in (sdk, http, raw):
            load.wait_for(3, 60)
        FAULTS[fault](text_stack, index)
        wait_back(text_stack, index, old)
        for load in (sdk, http, raw):
            load.wait_for(load.done + 3, 60)
    assert sdk.failed == http.failed == raw.failed == []


def test_a_stream_waits_too(text_stack: Stack, index: int) -> None:
    """One that begins while the server is away."""
    old = tritonserver(text_stack, index)
    os.kill(old, signal.SIGKILL)
    while generated(text_stack, **{AT_ONCE: "1"}).status_code == 200:
        time.sleep(0.01)
    stream = text_stack.openai().completions.create(
        model=MODEL, prompt=PROMPT, max_tokens=TOKENS, temperature=0, stream=True, timeout=100
    )
    words = "".join(part.choices[0].text for part in stream if part.choices)
    assert tritonserver(text_stack, index) != old
    assert words == chat(text_stack)
