"""What scripts.benchmarks.torch_engine measured, as a picture: `python -m scripts.benchmarks.torch_plot JSON
PNG`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from matplotlib import pyplot


def main() -> None:
    """Seconds of sound per second, and gaps between two ids, by requests in flight."""
    source, output = sys.argv[1:]
    found = json.loads(Path(source).read_text("utf-8"))
    ours, theirs = (
        {int(name.split()[-1]): value for name, value in found.items() if name.startswith(start)}
        for start in ("in flight ", "transformers ")
    )
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(10, 4), layout="constrained")
    for name, cells in (("Conch's engine", ours), ("transformers' generate", theirs)):
        left.plot(list(cells), [cell["rtfx"] for cell in cells.values()], "o-", label=name)
    left.set(title=f"{found['shape']}, {found['machine']['gpu'].split(',')[0]}", ylabel="RTFx", yscale="log")
    left.legend()
    for name in ("p50", "p99"):
        right.plot(list(ours), [cell[f"gap_{name}_ms"] for cell in ours.values()], "o-", label=name)
    right.set(title="gap between two ids of a text", ylabel="ms")
    right.legend()
    for axes in (left, right):
        axes.set(xlabel="requests in flight", xscale="log")
        axes.grid(visible=True, alpha=0.3)
    figure.savefig(output, dpi=110)


if __name__ == "__main__":
    main()
