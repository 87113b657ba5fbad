"""`python -m scripts.bench_lengths`: what the few lengths of serving/lengths.py are worth, beside texts that keep their own, in one run.

The engine of the bundle mini-t5 (`make engines`) on all cores, without Triton: texts of 16 to 512 ids, four at once, 20 to 60 tokens each, no two
alike. Writes docs/benchmarks/lengths.md.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from build.catalog import ROOT
from serving import graphs, running
from serving.graphs import Graphs
from serving.sampling import Sampling
from serving.scheduler import Job, Scheduler

from .bench_stage import DOCS, machine, peer

ENGINE = ROOT / "engines" / "mini-t5" / "openvino" / "engine"
LONGEST, ROUND, ROUNDS = 512, 200, 4
OWN, FEW = "own lengths", "few lengths"


@dataclass(frozen=True)
class Row:
    """One round: resident memory in MB after it, seconds it took."""

    who: str
    texts: int
    memory: int
    seconds: float


class Waiting:
    """A listener who wants the end only."""

    def __init__(self) -> None:
        self.over = threading.Event()

    def cancelled(self) -> bool:
        """Never."""
        return False

    def update(self, _: Any) -> None:
        """Not asked for."""

    def finish(self, _: Any) -> None:
        """The end."""
        self.over.set()

    def aligned(self, _: Any) -> None:
        """Not asked for."""

    def fail(self, error: Exception) -> None:
        """Ends the benchmark."""
        raise error


def resident() -> int:
    """Of this process, in MB (proc(5), status)."""
    status = Path("/proc/self/status").read_text("utf-8").splitlines()
    return int(next(line for line in status if line.startswith("VmRSS")).split()[1]) // 1000


def measure(who: str) -> None:
    """Print a row for each round."""
    if who == OWN:
        for module in (graphs, running):
            mock.patch.object(module, "grained", lambda length, _: length).start()
    engine = Graphs(ENGINE)
    scheduler = Scheduler(engine)
    scheduler.start()

    def ask(number: int) -> None:
        rng, waiting = np.random.default_rng(number), Waiting()
        ids = rng.integers(3, engine.facts.vocabulary, int(rng.integers(16, LONGEST + 1)))
        scheduler.submit(Job(engine.facts.decoder_start, Sampling(int(rng.integers(20, 61)), -1), waiting, ids))
        waiting.over.wait()

    for done in range(0, ROUND * ROUNDS, ROUND):
        begin = time.perf_counter()
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(ask, range(done, done + ROUND)))
        print(json.dumps(dataclasses.asdict(Row(who, done + ROUND, resident(), round(time.perf_counter() - begin, 1)))), flush=True)
    scheduler.stop()


def main() -> None:
    """Both in processes of their own, one after the other."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=[OWN, FEW])
    if only := parser.parse_args().only:
        measure(only)
        return
    own, few = ([Row(**row) for row in peer("scripts.bench_lengths", "--only", who)] for who in (OWN, FEW))
    lines = [f"| {a.texts} | {a.memory} | {b.memory} | {a.seconds} | {b.seconds} | {a.seconds / b.seconds:.2f} |" for a, b in zip(own, few, strict=True)]
    head = ["| texts | MB, own lengths | MB, few lengths | s for 200, own | s for 200, few | times |", "|---|---|---|---|---|---|"]
    title = f"# Few lengths\n\nOn {machine()}, {datetime.now(UTC):%Y-%m-%d}. {__doc__}"
    (DOCS / "lengths.md").write_text("\n".join([title, *head, *lines, ""]), "utf-8")


if __name__ == "__main__":
    main()
