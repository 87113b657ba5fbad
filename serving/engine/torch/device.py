"""The device that computes, and what differs between GPU and CPU: streams, graphs, pinned memory."""

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
    """The GPU cannot run this engine; the message gives reason and remedy."""


@dataclass(frozen=True)
class Device:
    """One GPU, or the CPU. `steps` runs decoder steps, and `looks` what is requested between two of them, at
    a higher priority than `encodes`.
    """

    kind: str
    dtype: torch.dtype
    steps: Any = None
    encodes: Any = None
    looks: Any = None

    @classmethod
    def find(cls, precision: str, ranks: int = 1) -> Device:
        """Return the process's own GPU, the first visible one unless it is one of several ranks, or else its
        share of the CPU, which computes in float32.

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
        """Tell whether it is a GPU."""
        return self.kind == "cuda"

    @property
    def fuses(self) -> bool:
        """Tell whether kernels in Triton's language replace torch's: on a GPU, except in float32."""
        return self.gpu and self.dtype != torch.float32

    def on(self, stream: Any) -> AbstractContextManager[Any]:
        """Queue work on `stream`."""
        return torch.cuda.stream(stream) if self.gpu else nullcontext()

    def event(self) -> Any:
        """Record an event on the current stream; None on a CPU, where everything is synchronous."""
        return torch.cuda.current_stream().record_event() if self.gpu else None

    def upload(self, array: NDArray[Any]) -> Tensor:
        """Copy numbers from the host without waiting."""
        tensor = torch.from_numpy(np.ascontiguousarray(array))
        return tensor.pin_memory().to(self.kind, non_blocking=True) if self.gpu else tensor

    def zeros(self, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        """Allocate zeros on the device in `dtype`, by default the weights'."""
        return torch.zeros(*shape, dtype=dtype or self.dtype, device=self.kind)

    def empty(self, *shape: int) -> Tensor:
        """Allocate memory on the device in the weights' dtype."""
        return torch.empty(*shape, dtype=self.dtype, device=self.kind)

    def pool(self) -> Any:
        """Make a memory pool for graphs that run one at a time and keep nothing in it for one another."""
        return torch.cuda.graph_pool_handle() if self.gpu else None

    def graph(self, stream: Any, function: Callable[[], object], pool: Any = None) -> Callable[[], object]:
        """Record the work as a CUDA graph, which costs the host microseconds; on a CPU return the function
        itself. `pool` is where its memory comes from, by default its own.
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
    """Return how many ids a graph should read at once. With more, the milliseconds that a graph saves the
    host in queuing kernels are hidden by the GPU's own work, and padding costs more.
    """
    return int(PAYS / max(1, sum(weight.numel() for weight in model.parameters())))


@contextmanager
def uncollected() -> Iterator[None]:
    """Pause Python's garbage collector."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@contextmanager
def attention() -> Iterator[None]:
    """Compute attention over many queries with the fastest kernel that supports it."""
    with sdpa_kernel(BACKENDS, set_priority=True):
        yield


def _refuse_hidden_gpu() -> None:
    """Raise if this instance was given a GPU that torch cannot use."""
    given = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    if given and torch.version.cuda:
        raise NoGpu(
            f"CUDA_VISIBLE_DEVICES={given}, but torch {torch.__version__} finds no usable GPU; the driver "
            f"must know CUDA {torch.version.cuda}: see nvidia-smi"
        )
