"""What gateway and nginx add to a sentence of 1.6 s: `python -m bench.performance.speech.overhead`."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import httpx
import numpy as np

from build.catalog import ROOT
from ops.local import HOST
from speech import media

from ..speech_load import gateway_request, kserve_request_of
from ..stage import running
from .cells import wav

MODEL, REQUESTS, WARM = "mini-whisper", 300, 20
ORDER = ROOT / "miniatures" / "recordings" / "order.wav"


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
    with running(MODEL) as (layout, _), httpx.Client(trust_env=False, timeout=300) as client:
        requests = (
            (layout.kserve_http, kserve_request_of(clip)),
            (layout.port, gateway_request(MODEL, file, 0)),
        )
        for row in times:
            for way, (port, (path, body, headers)) in enumerate(requests):
                begin = time.perf_counter()
                answer = client.post(f"http://{HOST}:{port}{path}", content=body, headers=headers)
                row[way] = time.perf_counter() - begin
                answer.raise_for_status()
    alone, whole = 1000 * np.median(times[WARM:], axis=0)
    more = f"{whole - alone:.1f} ms more, of which decoding {1000 * decoding(file):.1f}"
    print(f"Triton {alone:.1f} ms, gateway {whole:.1f} ms: {more}")


if __name__ == "__main__":
    main()
