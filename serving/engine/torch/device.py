"""Where the engine computes, and what differs between a GPU and a CPU: streams, graphs, pinned memory."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

PRECISIONS = {"float16": torch.float16, "bfloat16": torch.bfloat16, "float32": torch.float32}
PAYS = 750e9  # products of numbers in about three milliseconds, at half of what an H100 does
# cuDNN's attention is a third faster than flash attention for Whisper's encoder on an H100; it lacks some
# shapes, which the others have.
BACKENDS = [
    SDPBackend.CUDNN_ATTENTION,
    SDPBackend.FLASH_ATTENTION,
    SDPBackend.EFFICIENT_ATTENTION,
    SDPBackend.MATH,
]


class NoGpu(RuntimeError):
    """The GPU that is there cannot run this engine; the message says why and what to do."""


@dataclass(frozen=True)
class Device:
    """One GPU, or the CPU. `steps` runs decoder steps, and `looks` what is asked between two of them, at a
    higher priority than `encodes`.
    """

    kind: str
    dtype: torch.dtype
    steps: Any = None
    encodes: Any = None
    looks: Any = None

    @classmethod
    def find(cls, precision: str, ranks: int = 1) -> Device:
        """The process's own GPU, which is the first that is visible unless it is one of several ranks, else
        its part of the CPU, which computes in float32.

        Raises:
            NoGpu: its driver is too old, or this build of torch has no kernels for it.
        """
        if not torch.cuda.is_available():
            _refuse_hidden_gpu()
            torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // ranks))
            return cls("cpu", torch.float32)
        major, minor = torch.cuda.get_device_capability()
        if major < 8:
            raise NoGpu(
                f"{torch.cuda.get_device_name()} has compute capability {major}.{minor}; the torch engine "
                "needs 8.0 (Ampere) or newer; use TARGET=openvino on this machine"
            )
        torch.backends.cudnn.allow_tf32 = False  # or convolutions in float32 have 10 bits
        steps, encodes, looks = (torch.cuda.Stream(priority=priority) for priority in (-5, 0, -5))
        return cls("cuda", PRECISIONS[precision], steps, encodes, looks)

    @property
    def gpu(self) -> bool:
        """Whether it is one."""
        return self.kind == "cuda"

    @property
    def fuses(self) -> bool:
        """Whether kernels in Triton's language take the place of torch's: not where every bit is wanted."""
        return self.gpu and self.dtype != torch.float32

    def on(self, stream: Any) -> AbstractContextManager[Any]:
        """Work is queued on `stream`."""
        return torch.cuda.stream(stream) if self.gpu else nullcontext()

    def event(self) -> Any:
        """Recorded on the current stream; None on a CPU, where all is done at once."""
        return torch.cuda.current_stream().record_event() if self.gpu else None

    def upload(self, array: NDArray[Any]) -> Tensor:
        """Numbers from the host, without waiting."""
        tensor = torch.from_numpy(np.ascontiguousarray(array))
        return tensor.pin_memory().to(self.kind, non_blocking=True) if self.gpu else tensor

    def zeros(self, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        """On the device; `dtype`: the weights' if None."""
        return torch.zeros(*shape, dtype=dtype or self.dtype, device=self.kind)

    def empty(self, *shape: int) -> Tensor:
        """On the device, of the weights' type."""
        return torch.empty(*shape, dtype=self.dtype, device=self.kind)

    def pool(self) -> Any:
        """Memory for graphs of which one runs at a time, and that leave nothing in it for one another."""
        return torch.cuda.graph_pool_handle() if self.gpu else None

    def graph(self, stream: Any, function: Callable[[], object], pool: Any = None) -> Callable[[], object]:
        """The same work as a CUDA graph, which costs the host microseconds; on a CPU the function itself.
        `pool`: where its memory comes from; by default its own.
        """
        if not self.gpu:
            return function
        torch.cuda.synchronize()  # what the work reads may have been filled on any stream
        with torch.cuda.stream(stream):
            for _ in range(2):  # kernels are compiled and workspaces made outside of the graph
                function()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        # Other threads' calls of CUDA do not break the recording; freeing another graph here would.
        with uncollected(), torch.cuda.graph(graph, pool, stream, capture_error_mode="thread_local"):
            function()
        torch.cuda.synchronize()
        replay: Callable[[], object] = graph.replay
        return replay


def worth_recording(model: nn.Module) -> int:
    """How many ids a graph is to read at once. With more, what the graph spares the host, some milliseconds
    of queuing kernel by kernel, is hidden by the GPU's own work, and what is padded costs more.
    """
    return int(PAYS / max(1, sum(weight.numel() for weight in model.parameters())))


@contextmanager
def uncollected() -> Iterator[None]:
    """Python's collector of cycles does not run."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@contextmanager
def attention() -> Iterator[None]:
    """Attention over many queries, by the fastest kernel that takes it."""
    with sdpa_kernel(BACKENDS, set_priority=True):
        yield


def _refuse_hidden_gpu() -> None:
    """A GPU was given to this instance, and torch cannot use it."""
    given = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    if given and torch.version.cuda:
        raise NoGpu(
            f"CUDA_VISIBLE_DEVICES={given}, but torch {torch.__version__} finds no usable GPU; the driver "
            f"must know CUDA {torch.version.cuda}: see nvidia-smi"
        )
