"""What `python -m ops.child` does before it runs a command."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from build.catalog import ROOT


@pytest.mark.parametrize("left", [True, False])
def test_the_socket_of_a_killed_run_is_removed(tmp_path: Path, left: bool) -> None:
    """The command finds nothing where a run that was killed left its socket; its exit status is passed on."""
    socket = tmp_path / "socket"
    if left:
        socket.touch()
    script = f"test ! -e {socket} && exit 7"
    command = [sys.executable, "-m", "ops.child", "--unlink", str(socket), "sh", "-c", script]
    assert subprocess.run(command, cwd=ROOT, check=False, timeout=30).returncode == 7
