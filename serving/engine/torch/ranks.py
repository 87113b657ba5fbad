"""An engine on several GPUs: rank 0 serves and tells the others, its child processes, what to do.

Every rank does the same with its part of the weights, so followers need only rank 0's calls. When a rank
dies, the others wait for its sums: the guard watches all ranks and ends the instance (ops/ranks.py).
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import weakref
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NoReturn

import torch
from numpy.typing import NDArray

from conch.names import RANK_MODULE

from ..runtime import Row, RunningBatch, Step
from .batch import DeviceBatch
from .device import NoGpu
from .runtime import TorchRuntime
from .sharding import Share
from .slots import TorchMemory
from .staging import EncoderSource

PR_SET_PDEATHSIG = 1  # linux/prctl.h
# A row as it is told: parent, new ids, position, how many ids of its prompt come later; then how many came
# before, or for a new row its memory, bias, choice and table.
Told = tuple[Any, ...]


class Ranks:
    """Processes of the other ranks. A command is one pickled tuple: a method's name and its arguments."""

    def __init__(self, folder: Path, parameters: Mapping[str, Any], count: int, meeting: Path) -> None:
        self.pipes: list[Connection] = []
        self.processes: list[subprocess.Popen[bytes]] = []
        python = sys.executable or shutil.which("python3") or "python3"
        for rank in range(1, count):
            reading, writing = os.pipe()
            command = [python, "-m", RANK_MODULE, str(reading), str(rank), str(count), str(meeting)]
            command += [str(folder), json.dumps(dict(parameters))]
            environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
            self.processes.append(subprocess.Popen(command, env=environment, pass_fds=[reading]))
            os.close(reading)
            self.pipes.append(Connection(writing, readable=False))

    def tell(self, *command: Any) -> None:
        """Send a command to all. If one has died, this process exits: its requests then fail over to another
        instance, like those of any stub that dies.
        """
        for pipe in self.pipes:
            try:
                pipe.send(command)
            except BrokenPipeError:
                _leave()

    @contextmanager
    def summing(self) -> Iterator[None]:
        """Work together with all. If one dies meanwhile, this process exits, too: gloo raises an error then,
        NCCL waits for the guard to end the instance.
        """
        try:
            yield
        except RuntimeError:
            if any(self._has_ended(process) for process in self.processes):
                _leave()
            raise

    @staticmethod
    def _has_ended(process: subprocess.Popen[bytes]) -> bool:
        """Tell whether a process has ended; its connections close a moment before it does."""
        with suppress(subprocess.TimeoutExpired):
            process.wait(1)
        return process.returncode is not None

    def release(self) -> None:
        """Close the pipes, which ends the followers."""
        for pipe in self.pipes:
            pipe.close()

    def wait(self) -> None:
        """Wait for them to exit."""
        for process in self.processes:
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _leave() -> NoReturn:
    print("a rank has died", file=sys.stderr, flush=True)
    os._exit(1)


class LeadingBatch(RunningBatch):
    """A RunningBatch of rank 0. `keys` identify the encoder outputs that the others have, too."""

    def __init__(self, batch: DeviceBatch, ranks: Ranks, keys: Mapping[TorchMemory, bytes]) -> None:
        self.batch, self.ranks, self.keys = batch, ranks, keys

    def step(self, rows: Sequence[Row]) -> Step:
        self.ranks.tell("step", [self._told(row) for row in rows])
        with self.ranks.summing():
            return self.batch.step(rows)

    def _told(self, row: Row) -> Told:
        if row.parent is not None:
            return (row.parent, row.ids, row.position, row.coming, len(row.before))
        key = None if row.memory is None else self.keys[row.memory]
        return (None, row.ids, row.position, row.coming, key, row.bias, row.choice, row.table)


class LeadingRuntime(TorchRuntime):
    """A Runtime whose engine spans `tp_size` GPUs, of which this process has the first.

    Raises:
        NoGpu: fewer GPUs are visible.
    """

    def __init__(self, folder: Path, parameters: Mapping[str, Any]) -> None:
        count = int(parameters["tp_size"])
        if torch.cuda.is_available() and torch.cuda.device_count() < count:
            raise NoGpu(
                f"this engine needs {count} GPUs, and {torch.cuda.device_count()} are visible; give the "
                "instance more with TRITON_i_GPUS, or build the bundle with TP_SIZE=1"
            )
        with tempfile.TemporaryDirectory() as work:
            meeting = Path(work) / "ranks"
            self.ranks = Ranks(folder, parameters, count, meeting)
            super().__init__(folder, parameters, Share.join(0, count, meeting))
        self.keys: weakref.WeakKeyDictionary[TorchMemory, bytes] = weakref.WeakKeyDictionary()
        self.known = Counter[bytes]()
        self.gone = deque[bytes]()

    def encode(self, sources: Sequence[EncoderSource]) -> list[TorchMemory]:
        self._forget()
        self.ranks.tell("encode", [(source.key, source.data.numpy()) for source in sources])
        with self.ranks.summing():
            memories = super().encode(sources)
        for source, memory in zip(sources, memories, strict=True):
            if memory not in self.keys:
                self.keys[memory] = source.key
                self.known[source.key] += 1
                weakref.finalize(memory, self.gone.append, source.key)
        return memories

    def _forget(self) -> None:
        """Tell the others to drop encoder outputs that nothing here references any more."""
        unheld = []
        while self.gone:
            key = self.gone.popleft()
            self.known[key] -= 1
            if not self.known[key]:
                del self.known[key]
                unheld.append(key)
        if unheld:
            self.ranks.tell("forget", unheld)

    def batch(self) -> RunningBatch:
        self.ranks.tell("clear")
        super().batch()
        return LeadingBatch(self.running, self.ranks, self.keys)

    def close(self) -> None:
        """See Runtime. NCCL's groups are left by all ranks together, or it waits for them for ever."""
        self.ranks.release()
        super().close()
        torch.distributed.destroy_process_group()
        self.ranks.wait()


class Follower:
    """Any other rank."""

    def __init__(self, runtime: TorchRuntime) -> None:
        self.runtime, self.memories, self.rows = runtime, dict[bytes, TorchMemory](), list[Row]()

    def follow(self, commands: Connection) -> None:
        """Execute commands until the pipe closes."""
        while True:
            try:
                name, *arguments = commands.recv()
            except EOFError:
                return
            getattr(self, name)(*arguments)

    def encode(self, sources: Sequence[tuple[bytes, NDArray[Any]]]) -> None:
        runtime = self.runtime
        take = runtime.staging.take if runtime.shape.mels else torch.from_numpy
        brought = [EncoderSource(key, take(data)) for key, data in sources]
        memories = self.runtime.encode(brought)
        self.memories |= zip((source.key for source in brought), memories, strict=True)

    def forget(self, keys: Sequence[bytes]) -> None:
        for key in keys:
            del self.memories[key]

    def clear(self) -> None:
        self.rows = []
        self.runtime.batch()

    def step(self, told: Sequence[Told]) -> None:
        """See LeadingBatch: a row that goes on keeps its memory, its bias and its choice."""
        self.rows = [self._row(*row) for row in told]
        self.runtime.running.step(self.rows)

    def _row(self, parent: int | None, ids: tuple[int, ...], position: int, coming: int, *new: Any) -> Row:
        if parent is None:
            key, bias, choice, table = new
            memory = None if key is None else self.memories[key]
            return Row(None, ids, position, memory, bias, choice, table, coming=coming)
        old, (read,) = self.rows[parent], new
        before = (*old.before, *old.ids)[:read]
        return Row(parent, ids, position, old.memory, old.bias, old.choice, before=before, coming=coming)


def main(reading: str, rank: str, count: str, meeting: str, folder: str, parameters: str) -> None:
    """Run a follower's process, which ends with its parent."""
    parent = os.getppid()
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        return
    share = Share.join(int(rank), int(count), Path(meeting))
    runtime = TorchRuntime(Path(folder), json.loads(parameters), share)
    Follower(runtime).follow(Connection(int(reading), writable=False))
    runtime.close()
    torch.distributed.destroy_process_group()
    os._exit(0)  # after sums over NCCL, libraries below Python now and then wait for ever


if __name__ == "__main__":
    main(*sys.argv[1:])
