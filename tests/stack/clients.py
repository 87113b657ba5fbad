"""What the stack tests speak: KServe tensors, plain HTTP, and loads that count."""

from __future__ import annotations

import json
import struct
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Any

import httpx
import numpy as np
import tritonclient.grpc as grpc
from numpy.typing import NDArray
from tritonclient.utils import np_to_triton_dtype

from speech.media import decode

from .conftest import RECORDINGS, Stack, until


def wave(name: str) -> NDArray[np.float32]:
    """A bundled recording at 16 kHz."""
    return decode(RECORDINGS / name, max_seconds=600, time_limit=60)


def wav(samples: NDArray[Any], channels: int = 1, claim: int | None = None, rate: int = 16_000) -> bytes:
    """A RIFF file of PCM (int16), of floats, or of G.711 mu-law (uint8); `claim` overrides the length that
    the header states.
    """
    data, align = samples.tobytes(), channels * samples.itemsize
    kind = {"i": 1, "f": 3, "u": 7}[samples.dtype.kind]
    form = struct.pack("<HHIIHH", kind, channels, rate, rate * align, align, 8 * samples.itemsize)
    head = struct.pack("<4sI8sI16s", b"RIFF", 36 + len(data), b"WAVEfmt ", len(form), form)
    return head + struct.pack("<4sI", b"data", len(data) if claim is None else claim) + data


def pcm(sound: NDArray[np.floating]) -> bytes:
    """A RIFF file of a sound at 16 kHz in 16 bits."""
    return wav((np.clip(sound, -1, 1) * 32767).astype("<i2"))


def tensors(client: Any, **arrays: NDArray[Any]) -> list[Any]:
    """Inputs for `client`, one of Triton's own modules: by HTTP, by gRPC, or by gRPC with asyncio."""
    made = [
        client.InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype))
        for name, array in arrays.items()
    ]
    for tensor, array in zip(made, arrays.values(), strict=True):
        tensor.set_data_from_numpy(array)
    return made


def grpc_inputs(
    sound: NDArray[np.float32], prefix: str = "", lengths: list[int] | None = None, **scalars: NDArray[Any]
) -> list[grpc.InferInput]:
    """Inputs of whisper_bls for [batch, samples] or [samples]."""
    rows = np.atleast_2d(sound)
    arrays: dict[str, NDArray[Any]] = {
        "WAV": rows,
        "TEXT_PREFIX": np.array([[prefix.encode()]] * len(rows), object),
        **scalars,
    }
    if lengths:
        arrays["WAV_LENS"] = np.array([[n] for n in lengths], np.int32)
    return tensors(grpc, **arrays)


def streamed(
    stack: Stack,
    model: str,
    inputs: list[Any],
    output: str,
    headers: dict[str, str] | None = None,
    seconds: float = 60,
) -> list[str]:
    """The texts of a decoupled model's responses by gRPC, to the last one."""
    answers: SimpleQueue[tuple[Any, Any]] = SimpleQueue()
    texts, final = list[str](), False
    with grpc.InferenceServerClient(stack.grpc) as client:
        client.start_stream(lambda result, error: answers.put((result, error)), headers=headers)
        client.async_stream_infer(model, inputs, enable_empty_final_response=True)
        while not final:
            result, error = answers.get(timeout=seconds)
            assert error is None, error
            if (found := result.as_numpy(output)) is not None:
                texts.append(found[0].decode())
            final = result.get_response().parameters["triton_final_response"].bool_param
        client.stop_stream()
    return texts


def events(answer: httpx.Response) -> list[dict[str, Any]]:
    """Server-sent events, without the mark of their end."""
    rows = [line.removeprefix("data: ") for line in answer.iter_lines() if line.startswith("data: ")]
    return [json.loads(row) for row in rows if row != "[DONE]"]


def figure(page: str, name: str, **labels: str) -> int:
    """A count on a page of metrics: the sum of the samples that have these labels."""
    rows = [line for line in page.splitlines() if line.startswith(f"{name}{{")]
    wanted = [f'{label}="{value}"' for label, value in labels.items()]
    return sum(int(float(row.rpartition(" ")[2])) for row in rows if all(one in row for one in wanted))


def infer(
    kserve: str, model: str, inputs: Mapping[str, tuple[str, Any]], timeout: float = 60, **extra: Any
) -> httpx.Response:
    """An inference whose tensors are JSON. `inputs`: datatypes and values by their names."""
    rows = [
        {"name": name, "datatype": kind, "shape": np.shape(data), "data": np.ravel(data).tolist()}
        for name, (kind, data) in inputs.items()
    ]
    return httpx.post(f"{kserve}/v2/models/{model}/infer", json={"inputs": rows, **extra}, timeout=timeout)


def wait_idle(kserve: str, instance: int) -> None:
    """Return when the engine of an instance has ended nothing for a second."""
    last, still = -1, 0
    deadline = time.monotonic() + 60
    while still < 4 and time.monotonic() < deadline:
        found = httpx.get(
            f"{kserve}/instances/{instance}/v2/models/tensorrt_llm_stream/stats", timeout=10
        ).json()["model_stats"][0]["inference_stats"]
        now = found["success"]["count"] + found["fail"]["count"]
        still = still + 1 if now == last else 0
        last = now
        time.sleep(0.25)


def in_flight(client: httpx.Client, kserve: str, instances: Sequence[int]) -> int:
    """On how many requests the tritonservers of some instances work, as guards count them."""
    pages = [client.get(f"{kserve}/instances/{i}/metrics").text for i in instances]
    return sum(figure(page, "conch_kserve_requests_in_flight") for page in pages)


def wait_in_flight(kserve: str, instances: Sequence[int], count: int) -> None:
    """Return when they work on so many."""
    with httpx.Client(timeout=10) as client:
        until(f"{count} requests in flight", lambda: in_flight(client, kserve, instances) >= count, 60)


def overtakes(kserve: str, long: Callable[[], object], short: Callable[[], object]) -> bool:
    """Whether a short request that is sent while the first instance works on a long one ends first. A GPU may
    have ended the long one before the short one is sent: then both are sent again, up to ten times.
    """
    with httpx.Client(timeout=10) as client, ThreadPoolExecutor(1) as thread:
        for _ in range(10):
            slow = thread.submit(long)
            while not slow.done() and not in_flight(client, kserve, [0]):
                time.sleep(0.001)
            short()
            first = not slow.done()
            slow.result()
            if first:
                return True
    return False


@dataclass
class Load:
    """Clients that repeat one call until told to stop; every failure is kept."""

    call: Callable[[], None]
    clients: int
    done: int = 0
    failed: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)
    stopping: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> Load:
        self.threads = [threading.Thread(target=self._run, daemon=True) for _ in range(self.clients)]
        for thread in self.threads:
            thread.start()
        return self

    def _run(self) -> None:
        while not self.stopping.is_set():
            try:
                self.call()
                with self.lock:
                    self.done += 1
            except Exception as error:  # noqa: BLE001  # whatever it is, it is a failed request
                with self.lock:
                    self.failed.append(f"{time.monotonic():.2f} {error!r}")

    def wait_for(self, count: int, seconds: float) -> None:
        """Until `count` calls succeeded in all."""
        until(
            lambda: f"{self.done} of {count} calls; failures: {self.failed[:3]}",
            lambda: self.done >= count,
            seconds,
        )

    def __exit__(self, *_: object) -> None:
        self.stopping.set()
        for thread in self.threads:
            thread.join(60)
