"""Seconds of speech a second through a running stack, for other benchmarks to call.

Windows of 30 s, no two of them alike, 64 ids each at KServe's `whisper_bls`; 16-bit WAV files at the gateway.
Clients are several processes (LOAD_PROCESSES at most) that ask again as soon as they are answered, on
connections that stay open; the first part of each run is not counted.
"""

from __future__ import annotations

import http.client
import os
import threading
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from urllib.parse import urlsplit

import numpy as np

from conch.whisper import text_prefix
from gateway.triton import encode
from speech.attempt import OUTPUTS

from .speech.cells import PREFIX, RATE, Floats, sound, wav

WINDOW, TOKENS = 30, 64
UNCOUNTED = 0.25  # of a run
WAV_END = 256  # bytes at the end of a body that may not be sound
CLIENTS = int(os.environ.get("LOAD_PROCESSES", "8"))
Make = Callable[[int], tuple[str, bytes, dict[str, str]]]


def kserve_request(seed: int, *, words: bool = False) -> tuple[str, bytes, dict[str, str]]:
    """Return path, body and headers of a request for one window. `words`: with word times, as the gateway
    requests for a file.
    """
    return kserve_request_of(sound(WINDOW, seed), words=words)


def kserve_request_of(wave: Floats, *, words: bool = False) -> tuple[str, bytes, dict[str, str]]:
    """Return the same for samples [n] at 16 kHz."""
    prefix = text_prefix("transcribe", "en") if words else PREFIX
    arrays = {
        "WAV": wave[None],
        "TEXT_PREFIX": np.array([[prefix.encode()]], object),
        "MAX_TOKENS": np.array([[TOKENS]], np.int32),
        **({"WORD_TIMESTAMPS": np.array([[True]])} if words else {}),
    }
    outputs = [*OUTPUTS, "TOKEN_BYTES", "WORD_TEXTS", "WORD_TIMES"] if words else ["TOKENS"]
    body, headers = encode(arrays, outputs, "")
    return "/v2/models/whisper_bls/infer", bytes(body), headers


def gateway_request(model: str, file: bytes | None, seed: int) -> tuple[str, bytes, dict[str, str]]:
    """Return the same for the gateway; `file` is a WAV to send instead of generated audio."""
    line = uuid.uuid4().hex
    fields = {"model": model, "language": "en", "beam_width": "1"}
    fields |= {} if file else {"max_tokens": str(TOKENS)}
    parts = [
        f'--{line}\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'
        for name, value in fields.items()
    ]
    head = f'--{line}\r\nContent-Disposition: form-data; name="file"; filename="a.wav"\r\n\r\n'
    body = "".join(parts).encode() + head.encode()
    body += (file or wav(sound(WINDOW, seed))) + f"\r\n--{line}--\r\n".encode()
    return "/v1/audio/transcriptions", body, {"Content-Type": f"multipart/form-data; boundary={line}"}


def vary(body: bytearray, headers: dict[str, str], number: int) -> None:
    """Change a sample, barely audibly, in each second, so that no two windows are equal, since an engine
    caches what it has encoded. Works in place, because copying two megabytes would slow the clients down.
    """
    samples = np.random.default_rng(number).integers(-128, 128, WINDOW)
    if length := headers.get("Inference-Header-Content-Length"):
        at, width = int(length), 4
        made = (samples / 32768).astype("<f4").tobytes()
    else:
        at, width = body.index(b"data", body.index(b"WAVE")) + 8, 2
        made = samples.astype("<i2").tobytes()
    starts = range(at, len(body) - WAV_END, RATE * width)
    for start, other in zip(starts, range(0, len(made), width), strict=False):
        body[start : start + width] = made[other : other + width]


def client(
    url: str, make: Make, threads: int, seconds: float, seed: int
) -> tuple[list[tuple[float, float]], list[str]]:
    """Return each request's start and duration in seconds of time.monotonic(), and the failures."""
    address, took, failed = urlsplit(url), list[tuple[float, float]](), list[str]()
    until = time.monotonic() + seconds

    def ask(own: int) -> None:
        path, made, headers = make(own)
        connection, body = http.client.HTTPConnection(address.netloc, timeout=120), bytearray(made)
        for number in range(own, 1 << 30, 64):
            if time.monotonic() > until:
                return
            vary(body, headers, number)
            began = time.monotonic()
            try:
                connection.request("POST", path, body, headers)
                answer = connection.getresponse()
                text = answer.read()
            except (OSError, http.client.HTTPException) as error:
                failed.append(repr(error))
                connection.close()
                time.sleep(0.1)
                continue
            if answer.status == 200:
                took.append((began, time.monotonic() - began))
            else:
                failed.append(f"{answer.status}: {text[:300]!r}")

    workers = [threading.Thread(target=ask, args=(seed * 64 + i,)) for i in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return took, failed


def measure(url: str, make: Make, in_flight: int, seconds: float, window: float = WINDOW) -> dict[str, float]:
    """Return requests per second, audio per second, and durations, for `in_flight` clients.

    Raises:
        RuntimeError: requests that failed: how many, and what the first was told.
    """
    processes = min(CLIENTS, in_flight, os.cpu_count() or 1)
    shares = [in_flight // processes + (i < in_flight % processes) for i in range(processes)]
    began = time.monotonic()
    with ProcessPoolExecutor(processes, get_context("spawn")) as pool:
        asked = [pool.submit(client, url, make, own, seconds, seed) for seed, own in enumerate(shares, 1)]
        ended = [each.result() for each in asked]
    took = [one for each, _ in ended for one in each]
    if failed := [one for _, each in ended for one in each]:
        raise RuntimeError(f"{len(failed)} of {len(took) + len(failed)} requests failed: {failed[0]}")
    first = min(at for at, _ in took)
    counted = [(at, each) for at, each in took if at + each > first + UNCOUNTED * seconds]
    span = max(at + each for at, each in counted) - (first + UNCOUNTED * seconds)
    times = np.array([each for _, each in counted]) * 1e3
    return {
        "requests_s": round(len(counted) / span, 1),
        "rtfx": round(len(counted) * window / span),
        "p50_ms": round(float(np.percentile(times, 50)), 1),
        "p95_ms": round(float(np.percentile(times, 95)), 1),
        "of": len(took),
        "all_s": round(time.monotonic() - began, 1),
    }
