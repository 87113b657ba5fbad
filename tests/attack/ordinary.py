"""An ordinary client of the gateway, in its own process: an attacker may be too busy to keep time."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Event

import httpx

from tests.stack.clients import RECORDINGS

PAUSE = 0.05
START_SECONDS = 120.0


@contextmanager
def ordinary(url: str) -> Iterator[list[float]]:
    """Ask from here to the end; then the list has the seconds of each answer.

    Raises:
        AssertionError: an answer was wrong, or none came.
    """
    context = multiprocessing.get_context("spawn")
    stop, times = context.Event(), list[float]()
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=_ask, args=(url, stop, there), daemon=True)
    process.start()
    there.close()
    try:
        first = here.recv() if here.poll(START_SECONDS) else "an ordinary client got no answer"
        assert first is None, first
        yield times
    finally:
        stop.set()
    found = here.recv()
    process.join()
    assert isinstance(found, list), found
    times += found


def _ask(url: str, stop: Event, tell: Connection) -> None:
    """Send None after the first answer; at the end the times, or what was wrong."""
    sound, times = (RECORDINGS / "order.wav").read_bytes(), list[float]()
    try:
        with httpx.Client(base_url=url, timeout=60) as client:
            while not stop.is_set():
                started = time.perf_counter()
                answer = client.post(
                    "/v1/audio/transcriptions",
                    files={"file": ("a.wav", sound)},
                    data={"model": "mini-whisper", "language": "en"},
                )
                assert answer.status_code == 200, answer.text
                times.append(time.perf_counter() - started)
                if len(times) == 1:
                    tell.send(None)
                stop.wait(PAUSE)
        tell.send(times[1:] or times)
    except Exception as error:  # noqa: BLE001  # it is told, and fails the test there
        tell.send(f"after {len(times)} answers: {error!r}")
