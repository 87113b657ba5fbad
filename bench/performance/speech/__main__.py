"""`make bench`: Conch compared with faster-whisper and transformers on the same random weights, in one run.

Whisper-base shape. First table, equal work: greedy, TOKENS ids for every clip, no fallback, the same threads.
Second table: what each does when nothing is set but the language. Writes
docs/benchmarks/whisper-base-cpu.{md,json,png}. Clips are 16 kHz WAV files for the gateway and arrays for
everybody else; the time to decode them is reported apart.
"""

from __future__ import annotations

import argparse

from ..stage import cores, peer
from .cells import Cell
from .conch import conch, overhead
from .peers import PEERS, checkpoint_folder
from .report import goals, report


def main() -> None:
    """Measure all systems, or one peer in this process."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peer", choices=PEERS)
    parser.add_argument("--requests", type=int, default=32)
    arguments = parser.parse_args()
    if arguments.peer:
        PEERS[arguments.peer](checkpoint_folder(), cores(), arguments.requests)
        return
    cells = conch("random-base", arguments.requests) + conch("random-base-unpadded", arguments.requests)
    rows = [
        row
        for name in PEERS
        for row in peer("bench.performance.speech", "--peer", name, "--requests", str(arguments.requests))
    ]
    cells += [Cell(**row) for row in rows]
    added = overhead()
    report(cells, added)
    for name, wanted, reached in goals(cells, added):
        print(f"{name}: {wanted:g}, reached {reached:.2f}")


if __name__ == "__main__":
    main()
