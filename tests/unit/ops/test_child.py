"""What `python -m ops.child` does before it runs a command."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from build.catalog import ROOT


@pytest.mark.parametrize("left", [0, 1, 2])
def test_the_sockets_of_a_killed_run_are_removed(tmp_path: Path, left: int) -> None:
    """The command finds nothing where a killed run left its sockets; its exit status is passed on."""
    sockets = [tmp_path / name for name in ("one", "two")]
    for socket in sockets[:left]:
        socket.touch()
    script = " && ".join([*(f"test ! -e {socket}" for socket in sockets), "exit 7"])
    unlink = [word for socket in sockets for word in ("--unlink", str(socket))]
    command = [sys.executable, "-m", "ops.child", *unlink, "sh", "-c", script]
    assert subprocess.run(command, cwd=ROOT, check=False, timeout=30).returncode == 7
