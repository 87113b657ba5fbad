"""Run one step of a build: its output goes into a log, and a line of it every few seconds to the terminal."""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from select import select
from typing import IO, BinaryIO

EVERY = 5.0  # seconds between two lines that are shown
QUIET = 30.0  # seconds without one, after which the time so far is shown
LONGEST = 160  # characters of a line
ENDS = re.compile(rb"[\r\n]+")  # a progress bar begins its line again


def run_step(
    argv: Sequence[str],
    where: Path,
    environment: Mapping[str, str],
    log: BinaryIO,
    tell: Callable[[str], None],
    every: float = EVERY,
) -> int:
    """Run a command to its end and return its exit status. `tell` gets the newest line of output, at most one
    every `every` seconds, and the elapsed time while there is no output.
    """
    with subprocess.Popen(
        argv, cwd=where, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as process:
        assert process.stdout
        try:
            _follow(process, process.stdout, log, tell, every)
        except BaseException:  # a full disk, or Ctrl-C
            process.kill()
            raise
    return process.returncode


def _follow(
    process: subprocess.Popen[bytes],
    output: IO[bytes],
    log: BinaryIO,
    tell: Callable[[str], None],
    every: float,
) -> None:
    began = shown = time.monotonic()
    newest = b""
    while True:
        ready, _, _ = select([output], [], [], every)
        piece = os.read(output.fileno(), 1 << 16) if ready else None
        if piece == b"" or (not ready and process.poll() is not None):
            return  # its end, or that of a tool whose children have kept the pipe
        if piece:
            log.write(piece)
            log.flush()
            newest = next((line for line in reversed(ENDS.split(piece)) if line.strip()), newest)
        now = time.monotonic()
        if newest and now - shown >= every:
            tell(newest.decode(errors="replace").strip()[:LONGEST])
            newest, shown = b"", now
        elif now - shown >= QUIET:
            tell(f"{now - began:.0f} s so far")
            shown = now
