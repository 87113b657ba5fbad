"""Conch's endpoints: the gateway, and KServe."""

from __future__ import annotations

import io
import time
import wave as riff
from collections.abc import Callable
from functools import partial

import httpx
import numpy as np

from build.catalog import ROOT
from gateway.triton import decode, encode
from ops.local import HOST, LocalDeployment
from speech import media

from ..stage import group_memory, running
from .cells import CONCURRENCY, DEFAULTS, LENGTHS, RATE, TOKENS, Cell, Floats, measure

PREFIX = "<|startoftranscript|><|en|><|transcribe|><|notimestamps|>"
OVERHEAD_REQUESTS = 300
ORDER = ROOT / "miniatures" / "recordings" / "order.wav"


def wav(clip: Floats) -> bytes:
    """Encode a 16-bit WAV."""
    buffer = io.BytesIO()
    with riff.open(buffer, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(RATE)
        file.writeframes((np.clip(clip, -1, 1) * 32767).astype("<i2").tobytes())
    return buffer.getvalue()


def gateway_call(layout: LocalDeployment, model: str, tokens: int | None = TOKENS) -> Callable[[bytes], None]:
    """Send a WAV file through nginx and the gateway."""
    client = httpx.Client(trust_env=False, base_url=f"http://{HOST}:{layout.port}", timeout=300)
    limit = {} if tokens is None else {"max_tokens": str(tokens)}
    fields = {"model": model, "language": "en", "beam_width": "1"} | limit

    def call(file: bytes) -> None:
        answer = client.post("/v1/audio/transcriptions", files={"file": ("a.wav", file)}, data=fields)
        answer.raise_for_status()
        assert answer.json()["text"], "no words were made: unequal work"

    return call


def triton_call(
    layout: LocalDeployment, tokens: int = TOKENS, *, least: int = TOKENS - 1
) -> Callable[[Floats], None]:
    """Send a KServe request through nginx and the guard; `least` is the minimum of generated tokens."""
    client = httpx.Client(trust_env=False, base_url=f"http://{HOST}:{layout.kserve_http}", timeout=300)

    def call(clip: Floats) -> None:
        arrays = {
            "WAV": clip[None],
            "TEXT_PREFIX": np.array([[PREFIX.encode()]], object),
            "MAX_TOKENS": np.array([[tokens]], np.int32),
        }
        body, headers = encode(arrays, ["TOKENS"], "")
        answer = client.post("/v2/models/whisper_bls/infer", content=body, headers=headers)
        answer.raise_for_status()
        made = decode(answer, ["TOKENS"])["TOKENS"].shape[1]
        assert made >= least, f"only {made} tokens were made: unequal work"

    return call


def conch(model: str, requests: int) -> list[Cell]:
    """Measure both endpoints of one instance, and the gateway with default options."""
    cells = []
    label = "Conch, unpadded" if model.endswith("unpadded") else "Conch"
    with running(model) as (layout, process):
        memory = partial(group_memory, process.pid)
        for seconds in LENGTHS:
            for concurrency in CONCURRENCY:
                count = requests if concurrency > 1 else max(8, requests // 3)
                cells.append(
                    measure(
                        f"{label}, direct at Triton", seconds, concurrency, count, triton_call(layout), memory
                    )
                )
                cells.append(
                    measure(
                        f"{label}, gateway",
                        seconds,
                        concurrency,
                        count,
                        gateway_call(layout, model),
                        memory,
                        prepare=wav,
                    )
                )
        if label == "Conch":
            cells.append(
                measure(
                    f"{label}{DEFAULTS}", 30, 1, 4, gateway_call(layout, model, None), memory, prepare=wav
                )
            )
    return cells


def overhead() -> float:
    """Return the median seconds that gateway and nginx add for a sentence of 1.6 s that the miniature knows,
    including decoding; the calls alternate. The text ends by itself, so the work is equal.
    """
    with running("mini-whisper") as (layout, _):
        clip = media.decode(ORDER, max_seconds=60, time_limit=60)
        direct_way = triton_call(layout, least=2)
        ways = [(direct_way, clip), (gateway_call(layout, "mini-whisper", None), wav(clip))]
        times = np.zeros((OVERHEAD_REQUESTS, 2))
        for row in times:
            for way, (call, given) in enumerate(ways):
                begin = time.perf_counter()
                call(given)  # type: ignore[operator]
                row[way] = time.perf_counter() - begin
    direct, gateway = np.median(times[20:], axis=0)
    return float(gateway - direct)
