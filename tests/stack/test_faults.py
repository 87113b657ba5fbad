"""Parts of the stack are killed while it is used."""

from __future__ import annotations

import os
import re
import signal
import time

import httpx
import pytest
import tritonclient.grpc as grpc

from ..attack.faults import INPUTS, serving
from .clients import RECORDINGS, Load, grpc_inputs, infer, wave
from .conftest import Stack, restarted, until
from .processes import stub, tritonserver

ORDER = (RECORDINGS / "order.wav").read_bytes()
GUARD_SECONDS = 15.0


def transcribe(stack: Stack) -> None:
    """One request through the gateway; anything but the words is a failure."""
    answer = stack.transcribe(ORDER, model="mini-whisper", language="en", timeout=60)
    assert answer.status_code == 200, answer.text
    assert answer.json()["text"]


def answers(stack: Stack, index: int) -> bool:
    """The instance answers a real inference, itself: its guard says that its server is there."""
    instance = f"{stack.kserve}/instances/{index}"
    return serving(stack, index) and infer(instance, "whisper_bls", INPUTS).status_code == 200


def wait_back(stack: Stack, index: int, seconds: float) -> float:
    """Seconds until the instance answers."""
    started = time.monotonic()
    until(f"triton-{index} answers", lambda: answers(stack, index), seconds, httpx.HTTPError)
    return time.monotonic() - started


def test_a_killed_tritonserver_loses_no_request(stack: Stack, record_property: pytest.RecordProperty) -> None:
    """SIGKILL under 8 clients and at least 300 requests: none fails, and the instance comes back."""
    with Load(lambda: transcribe(stack), clients=8) as load:
        load.wait_for(80, 120)
        old = tritonserver(stack, 0)
        os.kill(old, signal.SIGKILL)
        load.wait_for(300, 180)
        record_property("seconds_until_back", wait_back(stack, 0, 60))
    assert load.failed == []
    assert tritonserver(stack, 0) != old


@pytest.mark.parametrize("model", ["tensorrt_llm_stream", "whisper_bls"])
def test_a_killed_stub_loses_no_request_at_the_gateway(stack: Stack, model: str) -> None:
    """Through the gateway nothing fails; raw KServe calls fail only until the guard has noticed. No request
    is suspected of what a signal has done.
    """
    known = len(stack.log("triton-1"))
    client = grpc.InferenceServerClient(stack.grpc)
    inputs = grpc_inputs(wave("order.wav"))
    with (
        Load(lambda: transcribe(stack), clients=6) as load,
        Load(lambda: client.infer("whisper_bls", inputs, client_timeout=30) and None, clients=2) as raw,
    ):
        load.wait_for(40, 60)
        assert raw.failed == []
        killed = time.monotonic()
        os.kill(stub(stack, 1, model), signal.SIGKILL)
        load.wait_for(load.done + 80, 120)
        wait_back(stack, 1, 60)
        load.wait_for(load.done + 20, 60)
    assert load.failed == []
    last_failure = max((float(line.split()[0]) for line in raw.failed), default=killed)
    assert last_failure - killed < GUARD_SECONDS, raw.failed[-1]
    told = stack.log("triton-1")[known:]
    assert f"status -{signal.SIGKILL.value}" in told
    assert "it runs again alone" not in told


def test_a_planned_restart_loses_nothing(stack: Stack) -> None:
    """`make restart` under load: no failed request, HTTP and gRPC."""
    client = grpc.InferenceServerClient(stack.grpc)
    inputs = grpc_inputs(wave("order.wav"))
    before = [tritonserver(stack, 0), tritonserver(stack, 1)]
    with (
        Load(lambda: transcribe(stack), clients=4) as load,
        Load(lambda: client.infer("whisper_bls", inputs, client_timeout=60) and None, clients=4) as raw,
    ):
        load.wait_for(20, 60)
        done = restarted(stack)
        assert done.returncode == 0, done.stderr
        load.wait_for(load.done + 20, 60)
    assert load.failed == []
    assert raw.failed == []
    assert not set(before) & {tritonserver(stack, 0), tritonserver(stack, 1)}


def test_no_unexpected_error_was_logged(stack: Stack) -> None:
    """Whatever was thrown at gateways and guards, they never met an error they did not expect."""
    for i in range(2):
        assert not re.search(r'"event": "unexpected error"', stack.log(f"gateway-{i}"))
        assert "internal error of the guard" not in stack.log(f"triton-{i}")
