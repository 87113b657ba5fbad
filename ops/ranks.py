"""One tritonserver, or one for each rank of an engine that spans several GPUs (TensorRT-LLM's leader mode),
and their child processes.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from conch.names import ENGINE, RANK_MODULE

PARTS = {b"tritonserver", b"triton_python_backend_stub"}
# Open MPI binds the ranks of a small job to one core each, and its shared memory wants a capability that
# containers do not have.
MPIRUN = ("mpirun", "--bind-to", "none")
# gds: without it stubs that import TensorRT-LLM fail in MPI_Init
# (triton-inference-server/tensorrtllm_backend#712).
MPI_ENVIRONMENT = {"PMIX_MCA_gds": "hash", "OMPI_MCA_btl_vader_single_copy_mechanism": "none"}
# Of a process of the Python backend: it holds a thread for each call to another model until its first
# response, and sends responses by the same threads (python_backend, src/python_be.cc, `ExecuteBLSRequest`).
# Its default of 32 is less than an engine runs at once; as many as a façade takes in.
POOL = "--backend-config=python,thread-pool-size=256"
CLOSED = (
    "--allow-http=false",
    "--allow-grpc=false",
    "--allow-metrics=false",
    "--model-control-mode=explicit",
    f"--load-model={ENGINE}",
)


def launch(
    server: Sequence[str], listeners: Sequence[str], prefix: str, world_size: int, cuda_pool_bytes: int = 0
) -> list[str]:
    """Return the command of an instance. `server` is for every rank; `listeners` only for rank 0, which alone
    listens and has façades.
    """
    pool = [f"--cuda-memory-pool-byte-size=0:{cuda_pool_bytes}"] if cuda_pool_bytes else []
    first = [*server, POOL, *listeners, *pool, f"--backend-config=python,shm-region-prefix-name={prefix}"]
    if world_size == 1:
        return first
    others = [
        [*server, POOL, *CLOSED, f"--backend-config=python,shm-region-prefix-name={prefix}_{rank}"]
        for rank in range(1, world_size)
    ]
    root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
    return [
        *MPIRUN,
        *root,
        "-n",
        "1",
        *first,
        *(part for other in others for part in (":", "-n", "1", *other)),
    ]


def _children(pid: int) -> Iterator[int]:
    """Yield the processes that a process started, without those of threads that have just ended."""
    with suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            with suppress(OSError):
                yield from map(int, (task / "children").read_text().split())


def descendants(pid: int) -> set[int]:
    """Return every process below one."""
    below = set(_children(pid))
    return below.union(*(descendants(child) for child in below))


def arguments(pid: int) -> list[bytes]:
    """Return a process's command line; one empty word if it has just ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return [b""]


def parts(pid: int) -> set[int]:
    """Return Python stubs and ranks below a process, without short-lived children that these start."""
    return {child for child in descendants(pid) if _is_part(arguments(child))}


def _is_part(words: Sequence[bytes]) -> bool:
    return words[0].rsplit(b"/", 1)[-1] in PARTS or RANK_MODULE.encode() in words


def leader(pid: int) -> int:
    """Return rank 0, the process that listens; the launched one itself without mpirun."""
    listening = (
        child
        for child in descendants(pid)
        if any(argument.startswith(b"--http-port=") for argument in arguments(child))
    )
    return next(listening, pid)


def process_facts(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat from the state on; none if there is no such process."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return []


def session(leader_pid: int) -> set[int]:
    """Return every process of the session that one leads, including orphans: Open MPI gives ranks groups of
    their own, but not sessions.
    """
    pids = (int(path.name) for path in Path("/proc").glob("[0-9]*"))
    found = {pid: process_facts(pid) for pid in pids}
    return {pid for pid, facts in found.items() if facts[3:4] == [str(leader_pid)] and facts[0] != "Z"}
