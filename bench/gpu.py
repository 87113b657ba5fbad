"""Tests and benchmarks on a GPU machine: `make gpu-test` and `make gpu-bench`, or `python -m bench.gpu
test|bench [PIECE …]`, in pieces of under ten minutes.

Each piece writes its output (.log) and a benchmark's results (.json) to gpu-results/; test.json or bench.json
has each one's outcome. Exit status 1 if one failed.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "gpu-results"
SECONDS = 590
# Seconds that a piece's processes have to end: once they are asked to, and once they are killed.
TO_STOP, KILLED = 60.0, 10.0
PYTEST = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider")
# answers: the miniatures say what they say on a CPU (miniatures/expected.json).
TESTS: Mapping[str, tuple[str, ...]] = {
    "kernels": (*PYTEST, *("tests/unit/serving/" + name for name in ("test_kernels.py", "test_choosing.py"))),
    "engines": (*PYTEST, "tests/unit/serving/test_text_engines.py", "-k", "torch"),
    "decoders": (*PYTEST, "tests/unit/serving/test_decoders.py", "-k", "torch or pieces_are"),
    "graphs": (*PYTEST, "tests/unit/serving/test_torch_graphs.py"),
    "stack": (*PYTEST, "tests/stack/test_torch.py"),
    "speech": (*PYTEST, "tests/stack/test_speech.py"),
    "text": (*PYTEST, "tests/stack/test_text.py"),
    "pictures": (*PYTEST, "tests/stack/test_pictures.py"),
    "faults": (*PYTEST, "tests/stack/test_faults.py"),
    "ranks": (*PYTEST, "tests/stack/test_torch_ranks.py"),
    "answers": (*PYTEST, "tests/stack/test_gpu_report.py", "-k", "what_is_expected"),
}
BENCHES: Mapping[str, tuple[str, ...]] = {
    "engine": (sys.executable, "-m", "bench.performance.torch_engine"),
    "stack": (sys.executable, "-m", "bench.performance.torch_stack"),
    "kill": (sys.executable, "-m", "bench.performance.torch_stack", "--instances", "2", "--kill"),
    "text": (sys.executable, "-m", "bench.performance.torch_text", "--static"),
    "gateway": (sys.executable, "-m", "bench.performance.gateway_load"),
    "prompts": (sys.executable, "-m", "bench.performance.torch_prompts"),
}


def run(name: str, command: Sequence[str], output: Path) -> dict[str, object]:
    """Run one piece for at most `SECONDS`, and return its status (-1: timeout) and duration. Its whole
    process group ends with it.
    """
    began = time.monotonic()
    # What ids are compared with, transformers' tiny models on the CPU, takes minutes on as many threads as a
    # machine with GPUs has.
    environment = {**os.environ, "CONCH_TARGET": "torch", "OMP_NUM_THREADS": "1"}
    with output.with_suffix(".log").open("wb") as log:
        piece = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=log, stderr=log, start_new_session=True
        )
    try:
        status = piece.wait(SECONDS)
    except subprocess.TimeoutExpired:
        status = -1
    finally:
        stop(piece)
    last = output.with_suffix(".log").read_text("utf-8", "replace").strip().rpartition("\n")[2]
    print(f"{name}: {'passed' if status == 0 else f'ended with {status}'}: {last}", flush=True)
    return {"status": status, "seconds": round(time.monotonic() - began, 1), "last": last}


def stop(piece: subprocess.Popen[bytes]) -> None:
    """End what is left of its process group: SIGTERM, and SIGKILL after `TO_STOP`."""
    with suppress(ProcessLookupError):
        for number, seconds in ((signal.SIGTERM, TO_STOP), (signal.SIGKILL, KILLED)):
            until = time.monotonic() + seconds
            os.killpg(piece.pid, number)
            while time.monotonic() < until:
                piece.poll()  # a leader that nobody waits for would count as there
                os.killpg(piece.pid, 0)
                time.sleep(0.05)


def main() -> int:
    """Return exit status 0 if all pieces passed."""
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
