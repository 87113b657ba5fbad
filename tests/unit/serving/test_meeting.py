"""How the ranks of an engine meet."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from build.catalog import ROOT

pytestmark = pytest.mark.slow  # imports torch, twice
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
