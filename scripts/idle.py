"""Waiting until a tritonserver has nothing in flight: `python -m scripts.idle http://127.0.0.1:8002`, the address of its metrics."""

from __future__ import annotations

import re
import sys
import time

import httpx

COUNTERS = re.compile(r'^nv_inference_request_(success|failure)\{[^}]*model="(?P<model>[^"]+)"[^}]*\} (?P<count>\d+)', re.MULTILINE)
LONGEST = 60.0


def finished(metrics: str) -> int:
    """Requests that have ended so far; -1 if the server is down already. Triton's pending gauge does not see running ones."""
    try:
        return sum(int(match["count"]) for match in COUNTERS.finditer(httpx.get(f"{metrics}/metrics", timeout=5).text))
    except httpx.HTTPError:
        return -1


def wait_idle(metrics: str) -> None:
    """Return when the counts have stood still for a second, after a minute at the latest."""
    deadline, last, still = time.monotonic() + LONGEST, -1, 0
    while time.monotonic() < deadline and still < 4:
        now = finished(metrics)
        still = still + 1 if now == last else 0
        last = now
        time.sleep(0.25)


if __name__ == "__main__":
    wait_idle(sys.argv[1])
