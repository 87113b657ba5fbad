"""`python -m bench.performance.text`, part of `make bench`: T5, BART and GPT-2 compared with CTranslate2 and
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
from collections.abc import Sequence

from ..stage import machine, peer
from .cells import MODELS, BenchModel, TextCell, middles
from .conch import conch
from .peers import PEERS
from .report import goals, kept, report


def all_systems(model: BenchModel, peers: Sequence[str]) -> list[TextCell]:
    """Measure Conch, then each peer."""
    found = [peer("bench.performance.text", "--peer", name, "--models", model.name) for name in peers]
    return conch(model) + [TextCell(**row) for rows in found for row in rows]


def main() -> None:
    """Measure all systems, or one peer in this process."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peer", choices=PEERS)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--peers", nargs="+", choices=PEERS, default=list(PEERS))
    parser.add_argument("--runs", type=int, default=1, help="of all systems, in turns; medians are reported")
    arguments = parser.parse_args()
    models = [MODELS[name] for name in arguments.models]
    if arguments.peer:
        for model in models:
            PEERS[arguments.peer](model)
        return
    runs = kept(models)
    for model in models:
        load = f"load average when it began {os.getloadavg()[0]:.1f}"
        when = f"on {machine()}, {time.strftime('%Y-%m-%d')}, {load}"
        measured = list[list[TextCell]]()
        for number in range(arguments.runs):
            measured.append(all_systems(model, arguments.peers))
            run = f"{when}, {number + 1} runs" if number else when
            runs[model.name] = (run, middles(measured))
            report(runs)  # a run that is cut off leaves what it has
    for name, wanted, reached in goals([cell for _, own in runs.values() for cell in own]):
        print(f"{name}: {wanted:g}, reached {reached:.2f}")


if __name__ == "__main__":
    main()
