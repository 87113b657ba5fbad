"""The torch engine in the whole stack: `python -m bench.performance.torch_stack [--model ID] [--instances N]
[--ways kserve,words,gateway] [--in-flight 1,64] [--kill] [--file WAV] [--output FILE]`, on the GPUs that are
there.

Builds the bundle, starts process mode, and sends windows of 30 s, no two of them alike, 64 ids each, as
bench/performance/speech_load.py does: at nginx's KServe, there with the times of words, and as WAV files at
the gateway. `--kill`: while each load runs, the tritonserver of the first instance is killed (signal 9).
Requests that fail are counted, and end the run with status 1. `queue_ms`: how long a request waited for
each Triton model of the first instance, by Triton's statistics; not where a server is killed.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from ops.local import HOST, LocalDeployment
from ops.ranks import arguments, descendants

from .speech.cells import RATE
from .speech_load import WINDOW, Make, gateway_request, kserve_request, measure
from .stage import Results, machine, running
from .torch_engine import machine as gpu


def servers(root: int) -> list[int]:
    """Return the tritonservers that descend from a process, oldest first."""
    return sorted(pid for pid in descendants(root) if arguments(pid)[0].endswith(b"/tritonserver"))


class Kill(threading.Timer):
    """Kills a deployment's first tritonserver after so many seconds; `victim` is the one it was."""

    def __init__(self, after: float, root: int) -> None:
        super().__init__(after, self.kill)
        self.root, self.victim, self.count = root, 0, len(servers(root))
        self.start()

    def kill(self) -> None:
        self.victim = servers(self.root)[0]
        os.kill(self.victim, signal.SIGKILL)

    def back(self, seconds: float = 120) -> float:
        """Return the seconds until there are as many servers as before.

        Raises:
            RuntimeError: none was killed, or it did not come back.
        """
        self.join()
        if not self.victim:
            raise RuntimeError("no tritonserver of this deployment was found to be killed")
        began = time.monotonic()
        while self.victim in (found := servers(self.root)) or len(found) < self.count:
            if time.monotonic() - began > seconds:
                raise RuntimeError("the killed tritonserver did not come back")
            time.sleep(0.5)
        return round(time.monotonic() - began, 1)


def queues(layout: LocalDeployment) -> dict[str, tuple[int, float]]:
    """Return, for each Triton model of the first instance, requests so far and their total queueing
    milliseconds.
    """
    url = f"http://{HOST}:{layout.port}/instances/0/v2/models/stats"
    with urlopen(url, timeout=10) as answer:
        models = json.load(answer)["model_stats"]
    waited = {each["name"]: each["inference_stats"]["queue"] for each in models}
    return {name: (one.get("count", 0), one.get("ns", 0) / 1e6) for name, one in waited.items()}


def between(
    before: Mapping[str, tuple[int, float]], after: Mapping[str, tuple[int, float]]
) -> dict[str, float]:
    """Return the mean queueing milliseconds for each model between two results of `queues`."""
    found = {name: (count - before[name][0], ms - before[name][1]) for name, (count, ms) in after.items()}
    return {name: round(ms / count, 2) for name, (count, ms) in found.items() if count > 0}


def ways(
    layout: LocalDeployment, model: str, file: bytes | None, named: str
) -> list[tuple[str, str, Make, float]]:
    """Return name, URL, request function and seconds of audio of each endpoint."""
    window = len(file) / 2 / RATE if file else WINDOW
    known: dict[str, tuple[str, Make, float]] = {
        "kserve": (f"http://{HOST}:{layout.kserve_http}", kserve_request, WINDOW),
        "words": (f"http://{HOST}:{layout.kserve_http}", partial(kserve_request, words=True), WINDOW),
        "gateway": (f"http://{HOST}:{layout.port}", partial(gateway_request, model, file), window),
    }
    return [(name, *known[name]) for name in named.split(",")]


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="random-large-v3-turbo")
    parser.add_argument("--instances", type=int, default=1)
    parser.add_argument("--ways", default="kserve,gateway")
    parser.add_argument("--in-flight", default="1,64")
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--kill", action="store_true")
    parser.add_argument("--file", type=Path, help="a 16-bit mono WAV at 16 kHz for the gateway")
    parser.add_argument("--output", type=Path)
    given = parser.parse_args()
    os.environ.setdefault("RECORDINGS_PER_INSTANCE", "256")
    results = Results(given.output, **{"machine": machine(), **gpu()}, instances=given.instances)
    file = given.file.read_bytes() if given.file else None
    began = time.monotonic()
    with running(given.model, "torch", given.instances) as (layout, process):
        results.add("ready_s", round(time.monotonic() - began, 1))
        results.add("gateways", layout.gateways)
        for name, url, make, window in ways(layout, given.model, file, given.ways):
            for in_flight in map(int, given.in_flight.split(",")):
                with suppress(RuntimeError):  # what is made at first use is not counted
                    measure(url, make, min(in_flight, 8), 2.0, window)
                kill = Kill(given.seconds / 2, process.pid) if given.kill else None
                found: dict[str, Any]
                before = {} if kill else queues(layout)
                try:
                    found = dict(measure(url, make, in_flight, given.seconds, window))
                except RuntimeError as error:
                    found = {"failed": str(error)}
                if before:
                    found["queue_ms"] = between(before, queues(layout))
                if kill:
                    found["back_s"] = kill.back()
                    time.sleep(5)  # it answers a little later
                results.add(f"{name} {in_flight}", found)
    if any("failed" in found for found in results.found.values() if isinstance(found, dict)):
        raise SystemExit("requests failed")


if __name__ == "__main__":
    main()
