"""`python -m scripts.benchmarks.text`, part of `make bench`: T5, BART and GPT-2 beside CTranslate2 and
transformers, the same random weights, one run.

Shapes of flan-t5-small, bart-base and gpt2-medium. Random weights have no words, so every system reads
and generates ids: Conch at Triton's `tensorrt_llm` and `tensorrt_llm_stream`, without gateway and tokenizer.
Greedy; EOS is suppressed, so each makes exactly the wanted number of tokens. Writes
docs/benchmarks/text-cpu.{md,json,png}.
"""

from __future__ import annotations

import argparse
import os
import time

from ..stage import machine, peer
from .cells import MODELS, Cell, Model
from .conch import conch
from .peers import PEERS
from .report import goals, kept, report


def everybody(model: Model) -> list[Cell]:
    """Conch, then each peer."""
    rows = [
        row
        for name in PEERS
        for row in peer("scripts.benchmarks.text", "--peer", name, "--models", model.name)
    ]
    return conch(model) + [Cell(**row) for row in rows]


def main() -> None:
    """Measure everybody, or one peer in this process."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peer", choices=PEERS)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    arguments = parser.parse_args()
    models = [MODELS[name] for name in arguments.models]
    if arguments.peer:
        for model in models:
            PEERS[arguments.peer](model)
        return
    runs = kept(models)
    for model in models:
        run = (
            f"on {machine()}, {time.strftime('%Y-%m-%d')}, load average when it began "
            f"{os.getloadavg()[0]:.1f}"
        )
        runs[model.name] = (run, everybody(model))
        report(runs)  # a run that is cut off leaves what it has
    for name, wanted, reached in goals([cell for _, own in runs.values() for cell in own]):
        print(f"{name}: {wanted:g}, reached {reached:.2f}")


if __name__ == "__main__":
    main()
