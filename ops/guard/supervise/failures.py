"""Failed starts of a server, with their cause from the server's output."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
from collections import deque
from contextlib import suppress
from pathlib import Path
from threading import Thread
from typing import IO

TELLING = 3  # starts that fail in a row are no accident
KEPT = 400  # lines
SETTLES = 0.2  # seconds in which the last lines of a process that has ended arrive
LONGEST = 400  # characters of a reason
NO_GPU = "CudaDriverHelper"  # of its every start on a machine without a driver
# Triton's own line about a model (src/model_lifecycle.cc), then whatever calls itself an error.
PATTERNS = [re.compile(r"failed to load '[^']+' version \d+: (?:[A-Z]\w+: )?(?:Internal: )?(.+)")]
PATTERNS += [
    re.compile(r"(?:^|\s)(\w*(?:Error|Exception): .+)"),
    re.compile(r"(?i)^(?:error|E\d{4}[^\]]*\])\s*:?\s*(.+)"),
]


def cause(lines: list[str]) -> str:
    """Return the line that says why a process ended; empty if there is none."""
    for pattern in PATTERNS:
        # Triton writes the ends of an exception's lines as two characters.
        telling = [match[1] for line in lines if NO_GPU not in line and (match := pattern.search(line))]
        found = [reason.split("\\n")[0].strip(' "') for reason in telling]
        if found:
            return found[-1][:LONGEST]
    return ""


class Tail:
    """Forwards a process's output, and keeps its end."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.lines: deque[str] = deque(maxlen=KEPT)
        assert process.stderr
        Thread(target=self._copy, args=(process.stderr,), daemon=True).start()

    def _copy(self, stream: IO[bytes]) -> None:
        for line in stream:
            with suppress(OSError, ValueError):
                sys.stderr.buffer.write(line)
                sys.stderr.buffer.flush()
            self.lines.append(line.decode("utf-8", "replace").rstrip())

    async def cause(self) -> str:
        await asyncio.sleep(SETTLES)
        return cause(list(self.lines))


class Failures:
    """Consecutive failed starts. They are stored in a file: a guard exits after some, and its supervisor
    starts the next.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.count, self.reason = path, 0, ""
        with suppress(OSError, ValueError, KeyError, TypeError):
            kept = json.loads(path.read_text("utf-8"))
            self.count, self.reason = int(kept["count"]), str(kept["reason"])

    def note(self, reason: str) -> None:
        """Count one more."""
        self.count, self.reason = self.count + 1, reason
        with suppress(OSError):
            self.path.write_text(json.dumps({"count": self.count, "reason": reason}), "utf-8")

    def clear(self) -> None:
        """Reset because the server is serving."""
        self.count, self.reason = 0, ""
        self.path.unlink(missing_ok=True)

    @property
    def told(self) -> str:
        """Return the message for clients while starts keep failing; empty otherwise."""
        if self.count < TELLING:
            return ""
        return f"the model cannot start (it failed {self.count} times): {self.reason}"
