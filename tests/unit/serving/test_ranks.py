"""An engine across two processes: how they meet, and what happens when one dies."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from build.catalog import ROOT

from ..engines import exported
from .test_text_engines import model_of

pytestmark = pytest.mark.long

# The other rank stops, gets the command, and dies while this one waits for its part of a sum.
STEP = """
import os, signal, sys, threading
from pathlib import Path
from serving.engine.runtime import Row
from serving.engine.torch import load

engine = load(Path(sys.argv[1]), {"precision": "float32", "max_rows": 4, "tp_size": 2})
batch, other = engine.batch(), engine.ranks.processes[0].pid
os.kill(other, signal.SIGSTOP)
threading.Timer(0.5, os.kill, (other, signal.SIGKILL)).start()
batch.step([Row(None, (5, 6), 0, None)])
"""


def test_a_rank_that_dies_in_a_sum_ends_the_first(tmp_path: Path) -> None:
    """So requests fail over; an error of the engine would be their answer."""
    engine = exported("torch", "gpt2", model_of("gpt2"), tmp_path)
    command = [sys.executable, "-c", STEP, str(engine)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=100)
    assert (done.returncode, "a rank has died" in done.stderr) == (1, True), done.stderr
    assert "Traceback" not in done.stderr


LATE = """
import sys, time
from pathlib import Path
from torch import distributed
from serving.engine.torch.sharding import Share

rank, folder = int(sys.argv[1]), Path(sys.argv[2])
made = distributed.new_group

def late(*arguments):
    group = made(*arguments)
    if rank == 1:
        time.sleep(2)
        (folder / "met").touch()
    return group

distributed.new_group = late
Share.join(rank, 2, folder / "ranks")
print((folder / "met").exists(), flush=True)
distributed.destroy_process_group()
"""


def test_nobody_leaves_before_all_have_met(tmp_path: Path) -> None:
    """Rank 0 removes the file by which they meet."""
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", LATE, str(rank), str(tmp_path)],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    assert [rank.communicate(timeout=120)[0] for rank in ranks] == ["True\n", "True\n"]
