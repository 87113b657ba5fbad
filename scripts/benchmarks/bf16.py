"""bf16 against f32 for matrix products on this CPU, by rows: `python -m scripts.benchmarks.bf16`.

24 layers of 768 x 3,072 in OpenVINO, the best of seven runs of each, in turn.
"""

from __future__ import annotations

import time

import numpy as np
import openvino as ov
from openvino import opset13 as op

WIDTH, INNER, PAIRS, RUNS = 768, 3072, 12, 7
ROWS = (1, 4, 8, 16, 32, 64, 256, 1500)


def product(x: ov.Output, given: int, made: int) -> ov.Node:
    """A product with random weights that keeps the size of its values."""
    weights = np.random.default_rng(0).normal(0, given**-0.5, (made, given)).astype(np.float32)
    return op.matmul(x, op.constant(weights), False, True)


def network() -> ov.Model:
    """Pairs of widening and narrowing products."""
    start = x = op.parameter([-1, WIDTH], np.float32)
    for _ in range(PAIRS):
        widened = op.multiply(op.relu(product(x, WIDTH, INNER)), op.constant(np.float32(2**0.5)))
        x = product(widened, INNER, WIDTH)
    return ov.Model([x], [start])


def main() -> None:
    """Print a table."""
    core, model = ov.Core(), network()
    requests = {
        precision: core.compile_model(
            model, "CPU", {"INFERENCE_PRECISION_HINT": precision, "PERFORMANCE_HINT": "LATENCY"}
        ).create_infer_request()
        for precision in ("bf16", "f32")
    }
    print("| rows | bf16 | f32 | f32 is so many times as fast |\n|---|---|---|---|")
    for rows in ROWS:
        x = np.random.default_rng(1).normal(size=(rows, WIDTH)).astype(np.float32)
        best = dict.fromkeys(requests, float("inf"))
        for _ in range(RUNS):
            for precision, request in requests.items():
                started = time.perf_counter()
                request.infer([x])
                best[precision] = min(best[precision], time.perf_counter() - started)
        print(
            f"| {rows} | {best['bf16'] * 1e3:.1f} ms | {best['f32'] * 1e3:.1f} ms |"
            f" {best['bf16'] / best['f32']:.2f} |"
        )


if __name__ == "__main__":
    main()
