"""What all benchmarks share: one instance of Conch on all cores, peers in separate processes, their memory,
and the machine's name.
"""

from __future__ import annotations

import json
import os
import platform
import resource
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from statistics import median
from typing import Any

from build.catalog import ROOT
from ops.local import LocalDeployment
from ops.process_mode import start
from ops.ranks import descendants
from ops.starting import Starting

DOCS = ROOT / "docs" / "benchmarks"
WORK = ROOT / ".conch" / "bench"


def cores() -> int:
    """Return the cores that this process may use."""
    return len(os.sched_getaffinity(0))


def machine() -> str:
    """Return the processor's name and its number of cores."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
    return f"{names[0] if names else platform.machine()}, {cores()} cores"


def group_memory(root: int) -> float:
    """Return the resident memory of a process and all of its descendants in MB."""
    pages = 0
    for pid in (root, *descendants(root)):
        with suppress(OSError):  # it has just ended
            pages += int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * resource.getpagesize() / (1 << 20)


class Results:
    """Results by name, printed as they are measured; with `output`, each is also written there as JSON."""

    def __init__(self, output: Path | None, **first: Any) -> None:
        self.output, self.found = output, first

    def add(self, name: str, value: Any) -> None:
        """Add one result."""
        self.found[name] = value
        print(name, value, flush=True)
        if self.output:
            self.output.write_text(json.dumps(self.found, indent=1) + "\n", "utf-8")


@contextmanager
def running(
    model: str,
    target: str = "openvino",
    instances: int = 1,
    engines: Path = WORK / "engines",
    weights: Path = WORK / "weights",
) -> Iterator[tuple[LocalDeployment, subprocess.Popen[bytes]]]:
    """Start one or more instances on all cores, with nginx and the gateway."""
    environment = {
        "MODEL_ID": model,
        "TARGET": target,
        "INSTANCES": str(instances),
        "PORT": os.environ.get("PORT") or "9680",
        "CONCH_HOME": str(WORK / "home"),
        "ENGINES_DIR": str(engines),
    }
    os.environ.update(environment)
    command = [sys.executable, "-m", "build", "engines", "--target", target, "--weights", str(weights)]
    subprocess.run(command, cwd=ROOT, check=True)
    layout = LocalDeployment.from_environment()
    process, plan = start(layout, ROOT / ".venv/serve/bin/python")
    try:
        Starting(layout, plan, process).wait(300)
        yield layout, process
    finally:
        process.terminate()
        process.wait(120)


def middle(runs: Sequence[Mapping[str, Any]], speed: str) -> dict[str, Any]:
    """Combine several runs of one measurement: the median of each float, and `lowest` and `highest` of
    `speed`; the rest, and memory, is the first run's.
    """
    medians = {
        name: round(median(run[name] for run in runs), 4)
        for name, value in runs[0].items()
        if isinstance(value, float)
    }
    speeds = [run[speed] for run in runs]
    return {**runs[0], **medians, "lowest": min(speeds), "highest": max(speeds)}


def spread(row: Mapping[str, Any]) -> str:
    """Return the lowest and highest speed of several runs, for a table."""
    return "" if row["lowest"] == row["highest"] else f" ({row['lowest']:g}–{row['highest']:g})"


def own_memory() -> float:
    """Return the peak resident memory of this process in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def peer(module: str, *arguments: str) -> list[dict[str, Any]]:
    """Run `module` in a fresh process and read the measurements, JSON objects, that it prints."""
    output = subprocess.check_output([sys.executable, "-m", module, *arguments], cwd=ROOT, text=True)
    rows = [line for line in output.splitlines() if line.startswith('{"system"')]
    print("\n".join(rows), flush=True)
    return [json.loads(row) for row in rows]
