"""Run a process that does not outlive its parent: `python -m ops.child [--exec | --unlink SOCKET | --cwd
FOLDER]… COMMAND…`.

If the supervisor is killed, nothing else would end what it ran, and its ports and sockets would stay in use.
With --exec the command replaces this process. Without, it is a child whose own children end with it: nginx's
workers would otherwise go on without their master. --unlink, once for each socket, removes what a killed run
has left: nginx does not listen on a Unix socket whose file exists.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from types import FrameType

from .ranks import descendants

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36  # prctl(2)
FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGUSR1)


def die_with_parent() -> None:
    """Make the kernel send SIGTERM to this process when its parent dies, also after exec."""
    parent = os.getppid()
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        sys.exit(1)


def run(command: list[str]) -> int:
    """Run a command, forward signals to it, end its leftover processes, and return its exit status."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
    process = subprocess.Popen(command, preexec_fn=die_with_parent)  # noqa: PLW1509

    def forward(number: int, _: FrameType | None) -> None:
        with suppress(ProcessLookupError):
            process.send_signal(number)

    for number in FORWARDED:
        signal.signal(number, forward)
    status = process.wait()
    for pid in descendants(os.getpid()):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
    return status if status >= 0 else 128 - status


def main() -> int:
    """Run the command line and return the command's exit status."""
    die_with_parent()
    command = sys.argv[1:]
    if command[0] == "--exec":
        os.execvp(command[1], command[1:])
    while command[0] in ("--unlink", "--cwd"):
        if command[0] == "--cwd":
            os.chdir(command[1])
        else:
            Path(command[1]).unlink(missing_ok=True)
        command = command[2:]
    return run(command)


if __name__ == "__main__":
    sys.exit(main())
