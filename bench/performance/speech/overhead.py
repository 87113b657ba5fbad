"""What gateway and nginx add to a sentence of 1.6 s: `python -m bench.performance.speech.overhead`."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import numpy as np

from build.catalog import ROOT
from gateway.triton import decode, encode
from ops.local import HOST, LocalDeployment
from speech import media

from ..stage import running
from .cells import PREFIX, Floats, wav

MODEL, REQUESTS, TOKENS, WARM = "mini-whisper", 300, 48, 20
ORDER = ROOT / "miniatures" / "recordings" / "order.wav"


def gateway_call(layout: LocalDeployment) -> Callable[[bytes], None]:
    """Send a WAV file through nginx and the gateway."""
    client = httpx.Client(trust_env=False, base_url=f"http://{HOST}:{layout.port}", timeout=300)
    fields = {"model": MODEL, "language": "en", "beam_width": "1"}

    def call(file: bytes) -> None:
        answer = client.post("/v1/audio/transcriptions", files={"file": ("a.wav", file)}, data=fields)
        assert answer.raise_for_status().json()["text"]

    return call


def triton_call(layout: LocalDeployment) -> Callable[[Floats], None]:
    """Send a KServe request through nginx and the guard."""
    client = httpx.Client(trust_env=False, base_url=f"http://{HOST}:{layout.kserve_http}", timeout=300)

    def call(clip: Floats) -> None:
        arrays = {
            "WAV": clip[None],
            "TEXT_PREFIX": np.array([[PREFIX.encode()]], object),
            "MAX_TOKENS": np.array([[TOKENS]], np.int32),
        }
        body, headers = encode(arrays, ["TOKENS"], "")
        answer = client.post("/v2/models/whisper_bls/infer", content=body, headers=headers)
        answer.raise_for_status()
        assert decode(answer.headers, answer.content, ["TOKENS"])["TOKENS"].shape[1] > 1

    return call


def decoding(file: bytes) -> float:
    """Return the median seconds to decode a WAV file, as the gateway does."""
    times = []
    with tempfile.NamedTemporaryFile(suffix=".wav") as written:
        written.write(file)
        written.flush()
        for _ in range(15):
            begin = time.perf_counter()
            media.decode(Path(written.name), max_seconds=60, time_limit=60)
            times.append(time.perf_counter() - begin)
    return float(np.median(times))


def main() -> None:
    """Print medians; the calls alternate. The text ends by itself, so the work is equal."""
    clip = media.decode(ORDER, max_seconds=60, time_limit=60)
    file = wav(clip)
    times = np.zeros((REQUESTS, 2))
    with running(MODEL) as (layout, _):
        direct, gateway = triton_call(layout), gateway_call(layout)
        for row in times:
            begin = time.perf_counter()
            direct(clip)
            between = time.perf_counter()
            gateway(file)
            row[:] = between - begin, time.perf_counter() - between
    alone, whole = 1000 * np.median(times[WARM:], axis=0)
    more = f"{whole - alone:.1f} ms more, of which decoding {1000 * decoding(file):.1f}"
    print(f"Triton {alone:.1f} ms, gateway {whole:.1f} ms: {more}")


if __name__ == "__main__":
    main()
