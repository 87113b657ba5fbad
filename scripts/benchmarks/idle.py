"""What a stack costs while nobody asks it anything: `python -m scripts.benchmarks.idle`.

Starts four instances of a miniature, two gateways and nginx in process mode, lets them settle, and reads the
processor time of each of their threads from the kernel's scheduler (/proc/PID/task/TID/schedstat, ns) at both
ends of a quiet minute.
"""

from __future__ import annotations

import argparse
import os
import time
from collections import defaultdict
from contextlib import suppress
from pathlib import Path

from build.catalog import ROOT
from ops.local import LocalDeployment
from ops.process_mode import start
from ops.ranks import descendants
from ops.starting import Starting

from .stage import machine

SETTLE = 30.0  # seconds; the last requests of the start are forgotten
PARTS = {
    "gateway": ("-m", "gateway"),
    "guard": ("ops.guard",),
    "nginx": ("nginx:",),
    "tritonserver": ("bin/tritonserver",),
    "the engine's stub": ("tensorrt_llm_stream_0_0",),
    "other stubs": ("triton_python_backend_stub",),
}


def part(pid: int) -> str:
    """Which part of the stack a process is."""
    line = Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
    return next((name for name, words in PARTS.items() if all(word in line for word in words)), "supervisor")


def used(root: int) -> dict[tuple[str, str], tuple[int, int]]:
    """Nanoseconds on a processor and times that it got one, of every thread, by its part and path."""
    found = {}
    for pid in {root, *descendants(root)}:
        with suppress(OSError):
            for task in Path(f"/proc/{pid}/task").iterdir():
                spent, _, turns = map(int, (task / "schedstat").read_text().split())
                found[part(pid), str(task)] = spent, turns
    return found


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model-id", default="mini-whisper")
    parser.add_argument("--instances", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=60)
    asked = parser.parse_args()
    os.environ |= {"MODEL_ID": asked.model_id, "INSTANCES": str(asked.instances), "TARGET": "openvino"}
    layout = LocalDeployment.from_environment()
    process, plan = start(layout, ROOT / ".venv/serve/bin/python")
    try:
        Starting(layout, plan, process).wait(300)
        time.sleep(SETTLE)
        before, began = used(process.pid), time.monotonic()
        time.sleep(asked.seconds)
        after, took = used(process.pid), time.monotonic() - began
    finally:
        process.terminate()
        process.wait(120)
    spent, turns = defaultdict[str, float](float), defaultdict[str, float](float)
    for (name, task), (nanoseconds, times) in after.items():
        old = before.get((name, task), (0, 0))
        spent[name] += (nanoseconds - old[0]) / 1e7 / took
        turns[name] += (times - old[1]) / took
    print(f"{machine()}, {asked.instances} × {asked.model_id}, {took:.0f} s\n")
    print("| part | % of a core | wake-ups a second |\n|---|---|---|")
    for name in sorted(spent, key=spent.__getitem__, reverse=True):
        print(f"| {name} | {spent[name]:.2f} | {turns[name]:.0f} |")
    print(f"| all | {sum(spent.values()):.2f} | {sum(turns.values()):.0f} |")


if __name__ == "__main__":
    main()
