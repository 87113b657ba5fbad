"""Databases for the tests of retrieval, each a process of an environment that the Makefile makes."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from pymilvus import MilvusClient
from pymilvus.exceptions import MilvusException

from .conftest import ROOT

FAKES = ROOT / "tests" / "fakes"
MILVUS_PORT, MONGO_PORT = 19530, 27917


def environment(name: str) -> Path:
    """Its Python."""
    python = ROOT / f".venv/{name}/bin/python"
    if not python.exists():
        pytest.skip(f".venv/{name} is not there; run: make databases (mongo needs CPython 3.13 or later)")
    return python


@contextmanager
def running(
    command: Sequence[str | Path], log: Path, ready: Callable[[], bool]
) -> Iterator[subprocess.Popen[bytes]]:
    """A process in a group of its own, once it is ready."""
    with log.open("ab") as out:
        process = subprocess.Popen(command, cwd=ROOT, stdout=out, stderr=out, start_new_session=True)
    try:
        until = time.monotonic() + 120
        while not ready():
            assert process.poll() is None and time.monotonic() < until, log.read_text("utf-8", "replace")
            time.sleep(0.2)
        yield process
    finally:
        end(process)


def end(process: subprocess.Popen[bytes]) -> None:
    """All of its group: Milvus' own process outlives the script that starts it."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)
            until = time.monotonic() + 30
            while time.monotonic() < until:
                process.poll()
                os.killpg(process.pid, 0)
                time.sleep(0.2)


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@contextmanager
def sqlite(folder: Path) -> Iterator[str]:
    yield f"sqlite:{folder / 'documents.sqlite'}"


@contextmanager
def mongo(folder: Path) -> Iterator[str]:
    command = [environment("mongo"), FAKES / "mongo_server.py", folder / "mongo.sqlite", str(MONGO_PORT)]
    with running(command, folder / "mongo.log", lambda: listens(MONGO_PORT)):
        yield f"mongodb://127.0.0.1:{MONGO_PORT}/conch"


@contextmanager
def lite(folder: Path) -> Iterator[str]:
    place = folder / "s"
    command = [environment("vectors"), "-m", "ops.vectors", folder / "vectors", place]
    with running(command, folder / "vectors.log", place.exists):
        yield f"unix:{place}"


@contextmanager
def milvus(folder: Path) -> Iterator[str]:
    environment("milvus")
    command = [ROOT / ".venv/milvus/bin/milvus-server", "--data", folder / "milvus"]
    url = f"http://127.0.0.1:{MILVUS_PORT}"

    def ready() -> bool:
        if not listens(MILVUS_PORT):
            return False
        try:
            MilvusClient(url, timeout=2).list_collections(timeout=2)
        except MilvusException:
            return False
        return True

    assert not listens(MILVUS_PORT), "another Milvus runs here"
    with running(command, folder / "milvus.log", ready):
        yield url


OPENERS = {"sqlite": sqlite, "mongo": mongo, "lite": lite, "milvus": milvus}
