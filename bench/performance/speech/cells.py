"""Clips, and their measurements."""

from __future__ import annotations

import dataclasses
import io
import json
import threading
import time
import wave as riff
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ops.demo import JFK
from speech import media

Floats = NDArray[np.float32]
RATE = 16_000
CONCURRENCY = (1, 8)
PREFIX = "<|startoftranscript|><|en|><|transcribe|><|notimestamps|>"


@dataclass(frozen=True)
class Cell:
    """One measurement; latencies and overheads in seconds, memory in MB."""

    system: str
    seconds: int
    concurrency: int
    requests: int
    rtfx: float
    per_second: float
    p50: float
    p95: float
    p99: float
    memory: float


@cache
def speech() -> Floats:
    """Return eleven seconds of speech, float32 at 16 kHz."""
    return media.decode(JFK, max_seconds=60, time_limit=60)


def sound(seconds: int, seed: int) -> Floats:
    """Return audio with speech in it, since the gateway leaves out silence; random weights ignore the
    content.
    """
    return np.resize(np.roll(speech(), -seed * RATE // 7), seconds * RATE)


def wav(clip: Floats) -> bytes:
    """Encode a 16-bit WAV."""
    buffer = io.BytesIO()
    with riff.open(buffer, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(RATE)
        file.writeframes((np.clip(clip, -1, 1) * 32767).astype("<i2").tobytes())
    return buffer.getvalue()


def timed_cell(
    system: str,
    seconds: int,
    concurrency: int,
    clips: Sequence[Any],
    call: Callable[[Any], None],
    memory: Callable[[], float],
    per_call: int = 1,
) -> Cell:
    """Warm up with one call, then transcribe the clips, of length `seconds`, from `concurrency` threads.
    `per_call` clips go into one call.
    """
    call(clips[0])
    latencies: list[float] = []
    lock = threading.Lock()

    def timed(clip: Any) -> None:
        begin = time.perf_counter()
        call(clip)
        with lock:
            latencies.append(time.perf_counter() - begin)

    started = time.perf_counter()
    with ThreadPoolExecutor(concurrency) as pool:
        list(pool.map(timed, clips))
    wall = time.perf_counter() - started
    done = len(clips) * per_call
    rtfx, per_second = round(done * seconds / wall, 1), round(done / wall, 2)
    p50, p95, p99 = (round(float(np.percentile(latencies, p)), 4) for p in (50, 95, 99))
    cell = Cell(system, seconds, concurrency, done, rtfx, per_second, p50, p95, p99, round(memory()))
    print(json.dumps(dataclasses.asdict(cell)), flush=True)
    return cell
