"""Process mode when what supervises it is killed."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from ops.ranks import descendants
from tests.ports import first_port

from .conftest import portable, serve, until, wait_ready

PORT = first_port("supervisor")
SECONDS = 40.0  # a guard drains what it has before it ends


def test_a_killed_supervisor_leaves_nothing_behind(tmp_path: Path) -> None:
    """SIGKILL of supervisord: all that it ran ends, `serve` says so with status 1, and the next `serve` finds
    its ports and sockets free. Only its user can read what is written.
    """
    environment = portable(tmp_path / "home", PORT, "mini-whisper", 1)
    home = Path(environment["CONCH_HOME"])
    first, stack = serve(environment)
    try:
        wait_ready(stack, first)
        supervisor = int((home / "run" / "supervisord.pid").read_text())
        ran = set(descendants(first.pid))
        assert len(ran) >= 8, "supervisor, guard, tritonserver, stubs, gateways, nginx"
        logs = list((home / "logs").glob("*.log"))
        assert logs
        assert not [log for log in logs if log.stat().st_mode & 0o077]
        os.kill(supervisor, signal.SIGKILL)
        assert first.wait(SECONDS) == 1
        until("all end", lambda: not [pid for pid in ran if Path(f"/proc/{pid}").exists()], SECONDS)
    finally:
        first.kill()
    second, stack = serve(environment)
    try:
        wait_ready(stack, second)
    finally:
        second.send_signal(signal.SIGTERM)
        assert second.wait(120) == 0
