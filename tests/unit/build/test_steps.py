"""What is seen of a build while it runs."""

from __future__ import annotations

import io
import os
import sys
from pathlib import Path

from build.steps import run_step

SLOW = """
import sys, time
for n in range(6):
    sys.stdout.write(f"\\r{n} of 6" if n % 2 else f"layer {n}\\n")
    sys.stdout.flush()
    time.sleep(0.2)
sys.exit(3)
"""


def test_lines_are_shown_while_a_step_runs(tmp_path: Path) -> None:
    """The newest of each while, bars included; the log has all of it."""
    log, told = io.BytesIO(), list[str]()
    command = [sys.executable, "-c", SLOW]
    assert run_step(command, tmp_path, dict(os.environ), log, told.append, every=0.3) == 3
    assert 2 <= len(told) <= 4
    assert set(told) <= {"layer 0", "1 of 6", "layer 2", "3 of 6", "layer 4", "5 of 6"}
    assert log.getvalue() == b"layer 0\n\r1 of 6layer 2\n\r3 of 6layer 4\n\r5 of 6"
