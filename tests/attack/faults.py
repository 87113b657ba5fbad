"""One fault under seven loads at once: what was sent, what was lost, and how long until all is back."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import httpx
import numpy as np
import openai
import tritonclient.grpc as grpc

from tests.stack.clients import Load, figure, grpc_inputs, infer, pcm, streamed, wave
from tests.stack.conftest import Stack, until

SOUND = wave("order.wav")[:16000]
INPUTS = {"TEXT_PREFIX": ("BYTES", [[""]]), "WAV": ("FP32", [[round(float(x), 4) for x in SOUND]])}
FORM = {"model": "mini-whisper", "language": "en"}
FILE = pcm(SOUND)
BACK_SECONDS = 120.0


def gateway(stack: Stack) -> None:
    answer = stack.transcribe(FILE, timeout=90, **FORM)
    assert answer.status_code == 200, (answer.status_code, answer.text)


def sdk(stack: Stack) -> None:
    """OpenAI's own client, which asks again where a connection breaks."""
    with openai.OpenAI(base_url=f"{stack.url}/v1", api_key="none", timeout=90) as client:
        answer = client.audio.transcriptions.create(file=("a.wav", FILE), **FORM)
    assert isinstance(answer.text, str)


def gateway_stream(stack: Stack) -> None:
    answer = stack.transcribe(FILE, timeout=90, stream="true", **FORM)
    assert answer.status_code == 200, (answer.status_code, answer.text)
    assert "transcript.text.done" in answer.text, answer.text[-300:]


def raw(stack: Stack) -> None:
    answer = infer(stack.kserve, "whisper_bls", INPUTS, timeout=90)
    assert answer.status_code == 200, (answer.status_code, answer.text)


def raw_stream(stack: Stack) -> None:
    answer = httpx.post(
        f"{stack.kserve}/v2/models/whisper_bls/generate_stream",
        json={"TEXT_PREFIX": "", "WAV": INPUTS["WAV"][1][0]},
        timeout=90,
    )
    assert answer.status_code == 200, (answer.status_code, answer.text)
    assert "error" not in answer.text, answer.text[-300:]


def raw_grpc(stack: Stack) -> None:
    with contextlib.closing(grpc.InferenceServerClient(stack.grpc)) as client:
        assert (
            client.infer("whisper_bls", grpc_inputs(SOUND), client_timeout=90).as_numpy("TRANSCRIPTS")
            is not None
        )


def grpc_stream(stack: Stack) -> None:
    inputs = grpc_inputs(SOUND, MAX_TOKENS=np.array([[8]], np.int32))
    streamed(stack, "whisper_bls_stream", inputs, "TRANSCRIPTS", seconds=90)


LOADS: dict[str, tuple[Callable[[Stack], None], int]] = {
    "gateway": (gateway, 2),
    "SDK": (sdk, 1),
    "gateway stream": (gateway_stream, 1),
    "HTTP": (raw, 2),
    "HTTP stream": (raw_stream, 1),
    "gRPC": (raw_grpc, 2),
    "gRPC stream": (grpc_stream, 1),
}
STREAMS = {"gateway stream", "HTTP stream", "gRPC stream"}


@dataclass(frozen=True)
class Fault:
    """`act` does it and gives a function that says whether all is back, with something new where it hit.
    `may_lose`: loads that are not streams of which requests in flight may be lost. `shuts`: nobody can
    connect meanwhile, and how many try depends on the clients alone.
    """

    act: Callable[[Stack], Callable[[], bool]]
    may_lose: frozenset[str] = frozenset()
    shuts: bool = False


def suffered(stack: Stack, name: str, fault: Fault, total: int) -> None:
    """`total` requests and more around a fault; what is not a stream is answered, whatever dies."""
    patience = 120 + total / 2
    with contextlib.ExitStack() as running:
        loads = {
            kind: running.enter_context(Load(lambda call=call: call(stack), clients))
            for kind, (call, clients) in LOADS.items()
        }  # type: ignore[misc]
        until_all(loads, total // 4, patience)
        started = time.monotonic()
        back = fault.act(stack)
        until("it is back", back, BACK_SECONDS)
        seconds = time.monotonic() - started
        until_all(loads, total, patience)
    counts = {kind: (load.done + len(load.failed), len(load.failed)) for kind, load in loads.items()}
    print(*(line for load in loads.values() for line in load.failed), sep="\n")
    print(f"\n{name}: back after {seconds:.1f} s; (sent, lost): {json.dumps(counts)}")
    for kind, load in loads.items():
        if kind not in STREAMS | fault.may_lose:
            assert load.failed == [], (kind, load.failed[:3])
        elif not fault.shuts:
            assert len(load.failed) <= 8, load.failed[:3]


def until_all(loads: dict[str, Load], total: int, seconds: float) -> None:
    """Return when so many calls have succeeded in all."""
    until(
        lambda: {kind: (load.done, load.failed[:2]) for kind, load in loads.items()},
        lambda: sum(load.done for load in loads.values()) >= total,
        seconds,
    )


def until_each(loads: dict[str, Load], count: int, seconds: float) -> None:
    """Return when so many calls of each kind have succeeded."""
    for load in loads.values():
        load.wait_for(count, seconds)


def guard_metric(stack: Stack, index: int, name: str) -> int:
    """A figure of an instance's guard; 0 where it does not answer."""
    with contextlib.suppress(httpx.HTTPError):
        return figure(httpx.get(f"{stack.kserve}/instances/{index}/metrics", timeout=10).text, name)
    return 0


def serving(stack: Stack, *instances: int) -> bool:
    """Whether the tritonservers answer."""
    return all(guard_metric(stack, index, "conch_triton_serving") == 1 for index in instances)


def starts(stack: Stack, instances: Iterable[int]) -> dict[int, int]:
    """How often each guard has started its server."""
    return {i: guard_metric(stack, i, "conch_triton_starts_total") for i in instances}


def replaced(stack: Stack, before: dict[int, int], *instances: int) -> bool:
    """Whether these servers have been started since `before`, and all that it counted answer. Starts are read
    first: a server that drains still counts as serving.
    """
    now = starts(stack, before)
    return all(now[i] > before[i] for i in instances) and serving(stack, *before)
