"""nginx itself, with what is rendered for a plan."""

from __future__ import annotations

import os
import random
import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from conch.deployment import Deployment
from ops.local import nginx_binary
from ops.nginx import OPEN, NginxValues, write_nginx


def free_block(size: int = 30) -> int:
    """The first of so many free ports that follow each other, below those of outgoing connections."""
    for first in random.sample(range(11_000, 30_000, size), 100):
        with ExitStack() as probes, suppress(OSError):
            for port in range(first, first + size):
                probes.enter_context(socket.create_server(("127.0.0.1", port)))
            return first
    raise AssertionError("no free ports")


def values_in(folder: Path, first: int) -> NginxValues:
    """Four ports that follow each other, and no instance's own."""
    return NginxValues(
        run=f"{folder}/run",
        listen="127.0.0.1",
        port=first,
        kserve=first + 1,
        grpc=first + 2,
        internal=f"127.0.0.1:{first + 3}",
        metrics=f"unix:{folder}/metrics",
        max_body="5m",
        user="user root;" if os.getuid() == 0 else "",
    )


@contextmanager
def running_nginx(folder: Path, made: Deployment, *, instances: bool = False) -> Iterator[NginxValues]:
    """In front of a plan's addresses; its ports. `instances`: ports of their own as well."""
    first = free_block()
    values = values_in(folder, first)
    if instances:
        values = replace(values, instance_http=first + 5, instance_grpc=first + 15)
    (folder / "run").mkdir(parents=True)
    main = write_nginx(folder, values, OPEN, made)
    process = subprocess.Popen([nginx_binary(), "-c", main, "-p", folder, "-e", "stderr"])
    try:
        yield values
    finally:
        process.terminate()
        process.wait(20)
