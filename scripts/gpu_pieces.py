"""On a machine with a GPU: `make gpu-test` and `make gpu-bench`, or `python -m scripts.gpu_pieces test|bench
[PIECE …]`, in pieces of under ten minutes.

Each piece leaves one file in gpu-results/, what a test printed (.log) or what a benchmark measured (.json),
and summary.json says how each ended. Exit status 1 if one failed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "gpu-results"
SECONDS = 590
PYTEST = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider")
# answers: the miniatures say what they say on a CPU (miniatures/expected.json).
TESTS: Mapping[str, tuple[str, ...]] = {
    "kernels": (*PYTEST, "tests/unit/serving/test_kernels.py", "tests/unit/serving/test_choosing.py"),
    "engines": (*PYTEST, "tests/unit/serving/test_text_engines.py", "-k", "torch"),
    "stack": (*PYTEST, "tests/stack/test_torch.py"),
    "speech": (*PYTEST, "tests/stack/test_speech.py"),
    "text": (*PYTEST, "tests/stack/test_text.py"),
    "faults": (*PYTEST, "tests/stack/test_faults.py"),
    "ranks": (*PYTEST, "tests/stack/test_torch_ranks.py"),
    "answers": (*PYTEST, "tests/stack/test_gpu_report.py", "-k", "what_is_expected"),
}
BENCHES: Mapping[str, tuple[str, ...]] = {
    "engine": (sys.executable, "-m", "scripts.benchmarks.torch_engine"),
    "stack": (sys.executable, "-m", "scripts.benchmarks.torch_stack"),
    "kill": (sys.executable, "-m", "scripts.benchmarks.torch_stack", "--instances", "2", "--kill"),
    "text": (sys.executable, "-m", "scripts.benchmarks.torch_text", "--static"),
    "gateway": (sys.executable, "-m", "scripts.benchmarks.gateway_load"),
}


def run(name: str, command: Sequence[str], output: Path) -> dict[str, object]:
    """One piece, for `SECONDS` at most: how it ended (-1: it took longer) and how long it took."""
    began = time.monotonic()
    environment = {**os.environ, "CONCH_TARGET": "torch", "OPENBLAS_NUM_THREADS": "1"}
    try:
        with output.with_suffix(".log").open("wb") as log:
            done = subprocess.run(
                command, cwd=ROOT, env=environment, stdout=log, stderr=log, timeout=SECONDS, check=False
            )
        status = done.returncode
    except subprocess.TimeoutExpired:
        status = -1
    last = output.with_suffix(".log").read_text("utf-8", "replace").strip().rpartition("\n")[2]
    print(f"{name}: {'passed' if status == 0 else f'ended with {status}'}: {last}", flush=True)
    return {"status": status, "seconds": round(time.monotonic() - began, 1), "last": last}


def main() -> int:
    """Exit status 0 if all pieces passed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=["test", "bench"])
    parser.add_argument("pieces", nargs="*")
    given = parser.parse_args()
    known = TESTS if given.kind == "test" else BENCHES
    if unknown := [name for name in given.pieces if name not in known]:
        print(f"no piece {unknown[0]!r}; there are: {', '.join(known)}", file=sys.stderr)
        return 2
    RESULTS.mkdir(exist_ok=True)
    summary = RESULTS / f"{given.kind}.json"
    ended: dict[str, dict[str, object]] = {}
    for name in given.pieces or known:
        output = RESULTS / f"{given.kind}-{name}.json"
        command = known[name] if given.kind == "test" else (*known[name], "--output", str(output))
        ended[name] = run(name, command, output)
        summary.write_text(json.dumps(ended, indent=1) + "\n", "utf-8")
    return int(any(one["status"] for one in ended.values()))


if __name__ == "__main__":
    sys.exit(main())
