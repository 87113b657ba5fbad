"""One run of a tritonserver: its command, its processes, and its end."""

from __future__ import annotations

import asyncio
import glob
import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from conch import blas
from conch.bundle import Serving
from conch.deployment import Instance
from conch.http_client import HttpClient
from conch.nvidia_images import interpreter, open_mpi
from ops.ranks import MPI_ENVIRONMENT, launch, leader, parts, process_facts, session

from ..metrics import of_triton
from .failures import Tail
from .fitting import fitted

PLAIN = re.compile(r"[\w./@+-]+")  # a path that a shell and the loader read as it is
NVIDIA = Path("/opt/tritonserver/bin/tritonserver")  # in NVIDIA's images
DRAIN = 30.0
# TensorRT-LLM's own metric: how many steps its executor has made, which makes none while nothing runs
# (https://github.com/triton-inference-server/tensorrtllm_backend#triton-metrics).
ITERATIONS = b'general_type="iteration_counter"'
# What tensors are moved through, and how much more of it a Python stub takes at a time where GPUs answer many
# long sounds at once: a part, and bytes at most. By 1 MB, the default, it grows for each of the first
# hundreds, and goes over all of it each time, twice and under a lock: 40 ms at 512 MB (python_backend,
# src/shm_manager.cc, `GrowIfNeeded`; boost allocates with posix_fallocate).
SHARED, PART, GROWTH = Path("/dev/shm"), 32, 256 << 20
# What glibc is told where speech is transcribed on a CPU: a memory of 1 MB or more is mapped by itself and
# given back when it is free. Sounds of many lengths lie among what stays otherwise, and heaps grow by a sixth
# in half an hour (docs/benchmarks/real-speech.md).
HEAPS = {
    "MALLOC_MMAP_THRESHOLD_": str(1 << 20),
    "MALLOC_TRIM_THRESHOLD_": str(16 << 20),
    "MALLOC_ARENA_MAX": "4",
}


@dataclass(frozen=True)
class TritonAddresses:
    """Where tritonserver itself listens: on sockets in a private folder, or on ports of a container's own
    loopback.
    """

    http: str
    grpc: str
    flags: tuple[str, ...]
    metrics: str = ""  # host:port of Triton's own page

    @classmethod
    def sockets(cls, folder: Path, name: str) -> TritonAddresses:
        """Return Unix sockets. Triton binds "unix:PATH" for HTTP, and for gRPC PATH followed by its port
        (seen with 24.10).
        """
        http, grpc = f"unix:{folder}/{name}.inner.http", f"unix:{folder}/{name}.inner.grpc"
        flags = (f"--http-address={http}", f"--grpc-address={grpc}", "--grpc-port=1", "--allow-metrics=false")
        return cls(http, f"{grpc}:1", flags)

    @classmethod
    def loopback(cls) -> TritonAddresses:
        """Return ports, for a container, whose loopback is its own."""
        flags = (
            "--http-address=127.0.0.1",
            "--http-port=18000",
            "--grpc-address=127.0.0.1",
            "--grpc-port=18001",
            "--metrics-address=127.0.0.1",
            "--metrics-port=18002",
        )
        return cls("127.0.0.1:18000", "127.0.0.1:18001", flags, "127.0.0.1:18002")


def plain(path: Path, links: Path, name: str) -> Path:
    """Return the path, or a link to it: Triton's Python backend passes paths to a shell, and the loader
    splits them at colons and semicolons.
    """
    if PLAIN.fullmatch(str(path)):
        return path
    link = links / name
    link.unlink(missing_ok=True)
    link.symlink_to(path)
    return link


def find_tritonserver(home: Path, links: Path) -> tuple[list[str], dict[str, str]]:
    """Return command and environment of NVIDIA's tritonserver, or of the one in nvidia-pytriton's wheel with
    a backend folder of real files under `home`. `links` is a folder for links to paths that need them.
    """
    if NVIDIA.exists():
        # The Python backend takes the first python3 on PATH: the image's own, which has the libraries that
        # models import.
        own = str(Path(sys.executable).parent)
        path = ":".join(part for part in os.environ.get("PATH", "").split(":") if part != own)
        python, first = interpreter("trtllm-build", path), Path(shutil.which("python3", path=path) or "")
        if python and first.parent != python.parent:
            path = f"{python.parent}:{path}"
        return [str(NVIDIA)], {**os.environ, **blas.settings(), "PATH": path}
    package = plain(Path(sysconfig.get_paths()["purelib"]), links, "packages")
    triton, backend = (
        package / "pytriton" / "tritonserver",
        plain(home, links, "home") / "backends" / "python",
    )
    backend.mkdir(parents=True, exist_ok=True)
    stub = triton / "python_backend_stubs" / f"3.{sys.version_info.minor}" / "triton_python_backend_stub"
    for file in (
        triton / "backends/python/libtriton_python.so",
        triton / "backends/python/triton_python_backend_utils.py",
        stub,
    ):
        if not (backend / file.name).exists():
            partial = backend / f"{file.name}.{os.getpid()}"
            shutil.copy2(file, partial)
            partial.replace(backend / file.name)
    libraries = f"{package / 'nvidia_pytriton.libs'}:{sysconfig.get_config_var('LIBDIR')}"
    environment = {
        **os.environ,
        **blas.settings(),
        "LD_LIBRARY_PATH": libraries,
        "PATH": f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}",
    }
    command = [
        str(triton / "bin" / "tritonserver"),
        f"--backend-directory={backend.parent}",
        f"--cache-directory={triton / 'caches'}",
    ]
    return command, environment


def growth(shared: Path) -> list[str]:
    """Return options for a server with GPUs and a shared memory file system of any size."""
    found = os.statvfs(shared)
    part = min(GROWTH, found.f_blocks * found.f_frsize // PART)
    return [f"--backend-config=python,shm-growth-byte-size={part}"] if part >> 20 else []


def traced(environment: Mapping[str, str], name: str) -> list[str]:
    """Return options for Triton's OpenTelemetry mode, only for requests that have a traceparent (rate 0),
    where CONCH_TRACES_URL names a collector
    (https://github.com/triton-inference-server/server/blob/r24.10/docs/user_guide/trace.md).
    """
    if not (url := environment.get("CONCH_TRACES_URL")):
        return []
    settings = {
        "mode": "opentelemetry",
        "rate": "0",
        "level": "TIMESTAMPS",
        "opentelemetry,url": f"{url.rstrip('/')}/v1/traces",
        "opentelemetry,resource": f"service.name={name}",
        "opentelemetry,bsp_schedule_delay": "1000",
    }
    return [f"--trace-config={key}={value}" for key, value in settings.items()]


def writable(home: Path) -> Path:
    """Return a writable folder: a container's home is read-only, and its /tmp is its own; elsewhere /tmp is
    shared.
    """
    return home if os.access(home, os.W_OK) else Path(tempfile.gettempdir())


def measures(home: Path, instance: int) -> Path:
    """Return the folder where an instance's Python stubs store their metrics (serving/engine/metrics.py)."""
    return writable(home) / f"metrics-{instance}"


def stopped(pid: int) -> bool:
    """Tell whether a process was stopped with a signal (state T)."""
    return process_facts(pid)[:1] == ["T"]


def ended(pid: int) -> int | None:
    """Return how a process of this user has ended, as its parent would see it: its exit status, or minus the
    signal; None if it runs, or its parent has already taken that (proc_pid_stat(5), `exit_code`).
    """
    if (facts := process_facts(pid))[:1] != ["Z"]:
        return None
    return os.waitstatus_to_exitcode(int(facts[-1]))


@dataclass(eq=False)
class Server:
    """A running tritonserver with its Python stubs and, where an engine spans GPUs, its ranks.

    `lost` is called when one of them ends, without polling: the kernel reports it through process file
    descriptors.
    """

    instance: Instance
    home: Path
    addresses: TritonAddresses
    serving: Serving
    lost: Callable[[str, int | None], None]
    process: subprocess.Popen[bytes] = field(init=False)
    tail: Tail = field(init=False)
    watched: dict[int, int] = field(default_factory=dict)

    def start(self) -> None:
        """Start the process in a session of its own."""
        folder = measures(self.home, self.instance.index)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        for address in (self.addresses.http, self.addresses.grpc):
            if address.startswith("unix:"):
                Path(address[5:]).unlink(missing_ok=True)
        self.triton = HttpClient(self.addresses.metrics) if self.addresses.metrics else None
        self.prefix = f"conch_{os.getpid()}_{self.instance.index}"
        command, environment = self._command()
        # No preexec_fn: a child forked from a process with gRPC's threads that runs Python before exec may
        # crash (seen).
        child = [sys.executable, "-m", "ops.child", "--exec", *command]
        environment = {**environment, "PROMETHEUS_MULTIPROC_DIR": str(folder)}
        self.process = subprocess.Popen(
            child, env=environment, start_new_session=True, stderr=subprocess.PIPE
        )
        self.tail = Tail(self.process)
        self._watch(self.process.pid)

    def _command(self) -> tuple[list[str], dict[str, str]]:
        """Return argv and environment of tritonserver, or of the mpirun that starts one for each rank."""
        listener = Path(self.addresses.http.removeprefix("unix:"))
        links = listener.parent if listener.is_absolute() else writable(self.home)
        binary, environment = find_tritonserver(self.home, links)
        bundle = plain(Path(self.instance.bundle), links, f"{self.instance.name}.bundle")
        view = plain(writable(self.home), links, "home") / f"repository-{self.instance.index}"
        repository = fitted(bundle, view, self.instance.kv_share, len(os.sched_getaffinity(0)))
        server = [
            *binary,
            f"--model-repository={repository}",
            f"--exit-timeout-secs={int(DRAIN)}",
            "--disable-auto-complete-config",
            *(growth(SHARED) if self.instance.gpus else []),
            *traced(environment, self.instance.name),
        ]
        ranks = self.serving.world_size if self.serving.mpi else 1
        pool = self.serving.cuda_pool_bytes
        return launch(server, list(self.addresses.flags), self.prefix, ranks, pool), {
            **(MPI_ENVIRONMENT | open_mpi(Path("/")) if self.serving.mpi else {}),
            **(HEAPS if self.instance.family == "whisper" and not self.instance.gpus else {}),
            **environment,
        }

    def watch_parts(self) -> None:
        """Watch every stub and rank that has appeared."""
        for pid in parts(self.process.pid) - self.watched.keys():
            self._watch(pid)

    def _watch(self, pid: int) -> None:
        with suppress(ProcessLookupError):
            self.watched[pid] = descriptor = os.pidfd_open(pid)
            asyncio.get_running_loop().add_reader(descriptor, self._ended, pid)

    def _ended(self, pid: int) -> None:
        status = ended(pid)
        self._forget(pid)
        if pid == self.process.pid:
            status = self.process.wait()
            self.lost(f"tritonserver ended with status {status}", status)
        else:
            how = f", status {status}" if status else ""
            self.lost(f"a Python stub or a rank has died (process {pid}{how})", status or None)

    def _forget(self, pid: int) -> None:
        descriptor = self.watched.pop(pid)
        asyncio.get_running_loop().remove_reader(descriptor)
        os.close(descriptor)

    def stopped(self) -> int | None:
        """Return one of the processes that was stopped with a signal."""
        return next((pid for pid in self.watched if stopped(pid)), None)

    async def progress(self) -> dict[str, bytes]:
        """Return what changes while the engine works, by name: what its Python stubs have counted, and
        TensorRT-LLM's steps, if Triton tells them now.
        """
        folder = measures(self.home, self.instance.index)
        steps = [line for line in await of_triton(self.triton) if ITERATIONS in line]
        counted = {file.name: file.read_bytes() for file in folder.glob("[!g]*.db")}
        return {**counted, "steps": b"".join(steps)} if steps else counted

    def computed(self) -> dict[int, float]:
        """Return the seconds of CPU time that each Python stub has used, if they compute on a CPU; none
        otherwise: a process that waits for a GPU uses as much where that hangs.
        """
        stubs = () if self.instance.gpus else self.watched.keys() - {self.process.pid}
        second = os.sysconf("SC_CLK_TCK")
        return {pid: sum(map(int, process_facts(pid)[11:13])) / second for pid in stubs}

    async def cause(self) -> str:
        """Return why it could not start, from its log; empty if unknown."""
        return await self.tail.cause()

    def terminate(self) -> None:
        """Ask it to end. Only rank 0 is asked, which drains; mpirun would kill it after a second."""
        if self.process.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(leader(self.process.pid), signal.SIGTERM)

    async def end(self, seconds: float) -> None:
        """Wait for the process, then kill what is left of its session, and remove the shared memory that it
        created.
        """
        for pid in [pid for pid in self.watched if pid != self.process.pid]:
            self._forget(pid)
        deadline = asyncio.get_running_loop().time() + seconds
        while self.process.poll() is None and asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(0.02)
        for pid in session(self.process.pid):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()
        if self.process.pid in self.watched:
            self._forget(self.process.pid)
        for region in glob.glob(f"/dev/shm/{self.prefix}*"):
            Path(region).unlink(missing_ok=True)
