"""Faults under six kinds of load at once, with exact counts of what was lost."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
import time
from collections.abc import Callable

import httpx
import numpy as np
import openai
import pytest
import tritonclient.grpc as grpc

from tests.stack.clients import Load, grpc_inputs, wave
from tests.stack.conftest import Stack, restarted

from . import processes

PER_FAULT = int(os.environ.get("ATTACK_PER_FAULT", "250"))
SOUND = wave("order.wav")[:16000]
WAV_JSON = [
    {"name": "TEXT_PREFIX", "datatype": "BYTES", "shape": [1, 1], "data": [""]},
    {
        "name": "WAV",
        "datatype": "FP32",
        "shape": [1, len(SOUND)],
        "data": [round(float(x), 4) for x in SOUND],
    },
]
pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]


def file() -> bytes:
    import io
    import wave as riff

    buffer = io.BytesIO()
    with riff.open(buffer, "wb") as out:
        out.setnchannels(1)
        out.setsampwidth(2)
        out.setframerate(16000)
        out.writeframes((SOUND * 32767).astype("<i2").tobytes())
    return buffer.getvalue()


FILE = file()
FORM = {"model": "mini-whisper", "language": "en"}


def gateway(stack: Stack) -> None:
    answer = httpx.post(
        f"{stack.url}/v1/audio/transcriptions", files={"file": ("a.wav", FILE)}, data=FORM, timeout=90
    )
    assert answer.status_code == 200, (answer.status_code, answer.text)


def sdk(stack: Stack) -> None:
    """OpenAI's own client, which asks again where a connection breaks."""
    with openai.OpenAI(base_url=f"{stack.url}/v1", api_key="none", timeout=90) as client:
        answer = client.audio.transcriptions.create(file=("a.wav", FILE), model="mini-whisper", language="en")
    assert isinstance(answer.text, str)


def gateway_stream(stack: Stack) -> None:
    answer = httpx.post(
        f"{stack.url}/v1/audio/transcriptions",
        files={"file": ("a.wav", FILE)},
        data={**FORM, "stream": "true"},
        timeout=90,
    )
    assert answer.status_code == 200, (answer.status_code, answer.text)
    assert "transcript.text.done" in answer.text, answer.text[-300:]


def raw(stack: Stack) -> None:
    answer = httpx.post(f"{stack.kserve}/v2/models/whisper_bls/infer", json={"inputs": WAV_JSON}, timeout=90)
    assert answer.status_code == 200, (answer.status_code, answer.text)


def raw_stream(stack: Stack) -> None:
    answer = httpx.post(
        f"{stack.kserve}/v2/models/whisper_bls/generate_stream",
        json={"TEXT_PREFIX": "", "WAV": WAV_JSON[1]["data"]},
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
    from queue import SimpleQueue

    answers: SimpleQueue[object] = SimpleQueue()
    with contextlib.closing(grpc.InferenceServerClient(stack.grpc)) as client:
        client.start_stream(lambda result, error: answers.put((result, error)))
        client.async_stream_infer(
            "whisper_bls_stream",
            grpc_inputs(SOUND, MAX_TOKENS=np.array([[8]], np.int32)),
            enable_empty_final_response=True,
        )
        while True:
            result, error = answers.get(timeout=90)  # type: ignore[misc]
            assert error is None, error
            if result.get_response().parameters["triton_final_response"].bool_param:
                break
        client.stop_stream()


LOADS: dict[str, tuple[Callable[[Stack], None], int]] = {
    "gateway": (gateway, 2),
    "SDK": (sdk, 1),
    "gateway stream": (gateway_stream, 1),
    "HTTP": (raw, 2),
    "HTTP stream": (raw_stream, 1),
    "gRPC": (raw_grpc, 2),
    "gRPC stream": (grpc_stream, 1),
}


def killed(find: Callable[[Stack], int], number: int = signal.SIGKILL) -> Callable[[Stack], None]:
    return lambda stack: os.kill(find(stack), number)


def paused(find: Callable[[Stack], int], seconds: float) -> Callable[[Stack], None]:
    def act(stack: Stack) -> None:
        pid = find(stack)
        os.kill(pid, signal.SIGSTOP)
        threading.Timer(seconds, go_on, [pid]).start()
        time.sleep(1)  # it still counts as serving

    def go_on(pid: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)

    return act


def restart(stack: Stack) -> None:
    """The planned one, of every instance."""
    done = restarted(stack)
    assert done.returncode == 0, done.stderr


# What may be lost, beside streams in flight: nothing, but for what nginx or a guard had in hand when it was
# killed itself.
FAULTS: dict[str, tuple[Callable[[Stack], None], set[str]]] = {
    "kill a tritonserver": (killed(lambda s: processes.server(s, 0)), set()),
    "kill the engine's stub": (killed(lambda s: processes.stub(s, 0, "tensorrt_llm_stream")), set()),
    "kill a facade's stub": (killed(lambda s: processes.stub(s, 0, "whisper_bls")), set()),
    "kill a guard": (killed(lambda s: processes.guard(s, 0)), {"gRPC"}),
    "kill a gateway": (killed(lambda s: processes.gateway(s, 0)), set()),
    "kill an nginx worker": (killed(lambda s: processes.nginx(s)[1][0]), {"gateway", "HTTP", "gRPC"}),
    "stop a tritonserver": (paused(lambda s: processes.server(s, 0), 15), set()),
    "stop a stub": (paused(lambda s: processes.stub(s, 0, "whisper_bls"), 15), set()),
    "end a guard": (killed(lambda s: processes.guard(s, 0), signal.SIGTERM), set()),
    "end a tritonserver": (killed(lambda s: processes.server(s, 0), signal.SIGTERM), set()),
    "planned restart": (restart, set()),
}
SAME_SERVER = {"kill a gateway", "kill an nginx worker"}  # no tritonserver is started anew
STREAMS = {"gateway stream", "HTTP stream", "gRPC stream"}


def starts(stack: Stack) -> str:
    """Which run of which tritonserver it is: guards' counts and process ids."""
    found = []
    for i in (0, 2):
        with contextlib.suppress(httpx.HTTPError, ValueError, OSError):
            text = httpx.get(f"{stack.kserve}/instances/{i}/metrics", timeout=10).text
            found.append(
                [line for line in text.splitlines() if line.startswith("conch_triton_starts_total")]
                + [str(processes.guard(stack, i))]
            )
    return repr(found)


def serving(stack: Stack, index: int) -> bool:
    try:
        return (
            "conch_triton_serving 1.0"
            in httpx.get(f"{stack.kserve}/instances/{index}/metrics", timeout=10).text
        )
    except httpx.HTTPError:
        return False


@pytest.mark.parametrize("fault", FAULTS)
def test_fault(target: Stack, fault: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    """What is not a stream is answered, whatever dies; the instance is back by itself."""
    act, may_lose = FAULTS[fault]
    with contextlib.ExitStack() as stack:
        loads = {
            name: stack.enter_context(Load(lambda call=call: call(target), clients))
            for name, (call, clients) in LOADS.items()
        }  # type: ignore[misc]
        until(loads, PER_FAULT // 4, 120)
        before, started = starts(target), time.monotonic()
        act(target)
        while starts(target) == before or not (serving(target, 0) and serving(target, 2)):
            if fault in SAME_SERVER:
                break
            assert time.monotonic() - started < 90, "the instance did not come back"
            time.sleep(0.1)
        back = time.monotonic() - started
        until(loads, PER_FAULT, 240)
    counts = {name: (load.done + len(load.failed), len(load.failed)) for name, load in loads.items()}
    print(f"\n{fault}: back after {back:.1f} s; (sent, lost): {json.dumps(counts)}")
    for name, load in loads.items():
        if name not in STREAMS | may_lose:
            assert load.failed == [], name
        else:
            assert len(load.failed) <= 8, load.failed[:3]


def until(loads: dict[str, Load], total: int, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while sum(load.done for load in loads.values()) < total:
        assert time.monotonic() < deadline, {
            name: (load.done, load.failed[:2]) for name, load in loads.items()
        }
        time.sleep(0.05)
