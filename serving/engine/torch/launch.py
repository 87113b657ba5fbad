"""Programmatic dependent launch (compute capability 9.0 and later): the programs of a kernel start while the
last ones of the kernel before still run, and wait before they touch what others read or write. A step of one
row is a hundred kernels or more, each of a few microseconds.

Every kernel with `early` waits, so a kernel that has ended implies that all before it have. Kernels without
it start when the one before has ended.
"""

from __future__ import annotations

from functools import cache

import torch
import torch.distributed as dist
import triton
import triton.language as tl

SINCE, FEW = (9, 0), 64


@triton.jit
def launch_dependents(DEPENDENT: tl.constexpr):
    """Let the next kernel's programs start as soon as all programs of this one run (CUDA's
    griddepcontrol.launch_dependents).
    """
    if DEPENDENT:
        tl.extra.cuda.gdc_launch_dependents()


@triton.jit
def grid_wait(DEPENDENT: tl.constexpr):
    """Wait until the kernels before have ended and what they wrote can be read (griddepcontrol.wait)."""
    if DEPENDENT:
        tl.extra.cuda.gdc_wait()


@triton.jit
def start_dependent(DEPENDENT: tl.constexpr):
    """Do both, where nothing can be done before."""
    launch_dependents(DEPENDENT)
    grid_wait(DEPENDENT)


@cache
def able() -> bool:
    """Tell whether the GPU supports it."""
    return torch.cuda.is_available() and torch.cuda.get_device_capability() >= SINCE


def early(rows: int) -> dict[str, bool]:
    """Return what a kernel for so many rows is launched with. For many rows programs that wait only take room
    from those that compute (measured on an H200: docs/benchmarks/h200.md). Next to NCCL's kernels, which run
    on a stream of their own, it was never tested, so several ranks do without it.
    """
    if rows > FEW or not able() or (dist.is_available() and dist.is_initialized()):
        return {"DEPENDENT": False}
    return {"DEPENDENT": True, "launch_pdl": True}
