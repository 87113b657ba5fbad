"""Databases for the tests of retrieval, each a process of an environment that the Makefile makes."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import grpc
import pytest
from pymilvus import MilvusClient
from pymilvus.exceptions import MilvusException

from .conftest import ROOT

FAKES = ROOT / "tests" / "fakes"
MILVUS_PORT, MONGO_PORT = 19530, 27917
MONGO_USER, MONGO_PASSWORD = "conch", "s3cret/%@: of the tests"


@dataclass
class Server:
    """A database in a process group of its own; started again after `kill`, it has the same data."""

    url: str
    command: Sequence[str | Path]
    log: Path
    ready: Callable[[], bool]
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Without waiting until it is ready."""
        with self.log.open("ab") as out:
            self.process = subprocess.Popen(
                self.command, cwd=ROOT, stdout=out, stderr=out, start_new_session=True
            )

    def wait(self) -> None:
        """Until it is ready."""
        until = time.monotonic() + 120
        while not self.ready():
            assert self.process and self.process.poll() is None and time.monotonic() < until, self.output()
            time.sleep(0.1)

    def output(self) -> str:
        return self.log.read_text("utf-8", "replace")[-5000:]

    def kill(self) -> None:
        """All of its group, with SIGKILL: Milvus' own process outlives the script that starts it, and takes
        half a minute to stop when it is asked to.
        """
        assert self.process
        until = time.monotonic() + 30
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
            while time.monotonic() < until:
                self.process.poll()
                os.killpg(self.process.pid, 0)
                time.sleep(0.05)


def environment(name: str) -> Path:
    """Its Python."""
    python = ROOT / f".venv/{name}/bin/python"
    if not python.exists():
        pytest.skip(f".venv/{name} is not there; run: make databases (mongo needs Debian or CPython 3.13)")
    return python


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def mongo(folder: Path) -> Server:
    file, port = folder / "mongo.sqlite", str(MONGO_PORT)
    command = [environment("mongo"), FAKES / "mongo_server.py", file, port, MONGO_USER, MONGO_PASSWORD]
    url = f"mongodb://{MONGO_USER}@127.0.0.1:{port}/conch?authSource=admin&authMechanism=SCRAM-SHA-256"
    return Server(url, command, folder / "mongo.log", lambda: listens(MONGO_PORT))


def lite(folder: Path) -> Server:
    place = folder / "s"
    command = [environment("vectors"), "-m", "ops.vectors", folder / "vectors", place]
    return Server(f"unix:{place}", command, folder / "vectors.log", place.exists)


def milvus(folder: Path) -> Server:
    command = [environment("milvus"), FAKES / "milvus_server.py", folder / "milvus"]
    url = f"http://127.0.0.1:{MILVUS_PORT}"

    def ready() -> bool:
        """Whether all that was written can be read, which is a while after it answers."""
        if not listens(MILVUS_PORT):
            return False
        try:
            client = MilvusClient(url, timeout=2)
            for name in client.list_collections(timeout=2):
                client.query(name, output_fields=["count(*)"], consistency_level="Strong", timeout=2)
        except (MilvusException, grpc.RpcError):
            return False
        return True

    assert not listens(MILVUS_PORT), "another Milvus runs here"
    return Server(url, command, folder / "milvus.log", ready)


SERVERS = {"mongo": mongo, "lite": lite, "milvus": milvus}


@contextmanager
def running(name: str, folder: Path) -> Iterator[Server]:
    """One of SERVERS, once it is ready."""
    server = SERVERS[name](folder)
    server.start()
    try:
        server.wait()
        yield server
    finally:
        server.kill()


@contextmanager
def opened(name: str, folder: Path) -> Iterator[str]:
    """The URL of SQLite, or of one of SERVERS, whose password is not in it."""
    if name == "sqlite":
        yield f"sqlite:{folder / 'documents.sqlite'}"
        return
    with running(name, folder) as server:
        yield server.url
