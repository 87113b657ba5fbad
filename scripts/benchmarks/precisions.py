"""What weights of 8 bits, bf16 and f32 cost Whisper on this CPU: `python -m scripts.benchmarks.precisions
--model-id base` prints a table of milliseconds, the best of several runs in turn: an encoder of 30 s, steps
of 1, 4 and 8 rows after half a window's text, and the aligner over that text.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np

from build.bundle import build
from build.catalog import ROOT, load_catalog
from build.plan import Places
from serving.engine.openvino.runtime import OpenVinoRuntime
from serving.engine.runtime import Row

from .stage import WORK, machine

RUNS, TEXT = 7, 80
ROWS = (1, 4, 8)
WINDOW = 3000  # frames
PART = ("encoder", *(f"step of {rows}" for rows in ROWS), "aligner")


def bundle(model_id: str, compress: str, weights: Path) -> Path:
    """The engine folder with weights of 8 bits or as they are."""
    model, engines = load_catalog()[model_id], WORK / "precisions" / compress
    given = replace(model, knobs={**model.knobs, "compress": compress})
    build(given, "openvino", Places(weights, engines))
    return engines / model_id / "openvino" / "engine"


def calls(runtime: OpenVinoRuntime) -> Iterator[tuple[str, Callable[[], object]]]:
    """What is timed, by name."""
    draw = np.random.default_rng(0)
    sounds = [draw.standard_normal((WINDOW, runtime.facts.mels)).astype(np.float32) for _ in range(8)]
    fresh = iter(range(1, 1 << 30))

    def encode() -> object:  # a sound that was heard before would not be encoded again
        return runtime.encode([runtime.prepare(sounds[0] + next(fresh))])

    yield "encoder", encode
    memories = [runtime.encode([runtime.prepare(sound)])[0] for sound in sounds]
    for rows in ROWS:
        batch, ids = runtime.batch(), tuple(range(100, 100 + TEXT))
        batch.step([Row(None, ids, 0, memory) for memory in memories[:rows]])
        at = iter(range(TEXT, 400))

        def step(batch: object = batch, at: Iterator[int] = at, rows: int = rows) -> object:
            place = next(at)
            return batch.step([Row(i, (7,), place, memories[i]) for i in range(rows)])  # type: ignore[attr-defined]

        yield f"step of {rows}", step
    yield "aligner", lambda: runtime.align(list(range(100, 100 + TEXT)), memories[0])


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model-id", default="base")
    parser.add_argument("--weights", type=Path, default=ROOT / "weights")
    given = parser.parse_args()
    timed = {
        (compress, precision): dict(
            calls(OpenVinoRuntime(bundle(given.model_id, compress, given.weights), precision))
        )
        for compress, precision in product(("none", "int8"), ("f32", "bf16"))
    }
    best = {key: dict.fromkeys(PART, float("inf")) for key in timed}
    for _, part, key in product(range(RUNS), PART, timed):
        for _ in range(1 if part in ("encoder", "aligner") else 5):
            begin = time.perf_counter()
            timed[key][part]()
            best[key][part] = min(best[key][part], time.perf_counter() - begin)
    print(machine())
    print("| weights, between |", " | ".join(PART), "|")
    print("|" + "---|" * (1 + len(PART)))
    for (compress, precision), row in best.items():
        cells = " | ".join(f"{1e3 * row[part]:.1f}" for part in PART)
        print(f"| {compress}, {precision} | {cells} |")


if __name__ == "__main__":
    main()
