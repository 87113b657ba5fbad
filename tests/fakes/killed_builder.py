"""The builder, killed at one of its writes: `python -m tests.fakes.killed_builder FOLDER NUMBER …`.

NUMBER counts what the builder itself changes below FOLDER (files opened for writing, renamed, made, removed)
and the steps that it starts; 0 never comes and prints how many there were. The rest is `python -m build`'s.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

CHANGES = {"os.rename", "os.mkdir", "os.remove", "os.rmdir", "os.link", "os.symlink"}
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT


class Counter:
    """Counts changes below a folder, and ends the process just before number `last`."""

    def __init__(self, folder: str, last: int) -> None:
        self.folder, self.last, self.count = folder, last, 0

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        """An audit event (sys.addaudithook)."""
        if self._counts(event, arguments):
            self.count += 1
            if self.count == self.last:
                os.kill(os.getpid(), signal.SIGKILL)

    def _counts(self, event: str, arguments: tuple[Any, ...]) -> bool:
        if event == "subprocess.Popen":
            return True
        if event != "open" and event not in CHANGES:
            return False
        below = isinstance(arguments[0], str | os.PathLike) and str(arguments[0]).startswith(self.folder)
        return below and (event != "open" or bool(arguments[2] & WRITING))


def main() -> int:
    """The builder's exit status."""
    from build.__main__ import main as build

    counter = Counter(sys.argv[1], int(sys.argv[2]))
    sys.addaudithook(counter)
    status = build(sys.argv[3:])
    print(f"changes: {counter.count}")
    return status


if __name__ == "__main__":
    sys.exit(main())
