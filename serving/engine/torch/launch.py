"""Programmatic dependent launch (compute capability 9.0 and later): the programs of a kernel start while the
last ones of the kernel before still run, and wait before they touch what others read or write. A step of one
row is a hundred kernels or more, each of a few microseconds.

Every kernel with `early` waits, so a kernel that has ended implies that all before it have. torch's own
kernels start when the one before has ended, as ever.
"""

from __future__ import annotations

from functools import cache

import torch
import triton
import triton.language as tl

SINCE, FEW = (9, 0), 64


@triton.jit
def let_next(EARLY: tl.constexpr):
    """Let the next kernel's programs start as soon as all programs of this one run."""
    if EARLY:
        tl.extra.cuda.gdc_launch_dependents()


@triton.jit
def wait(EARLY: tl.constexpr):
    """Wait until the kernels before have ended and what they wrote can be read."""
    if EARLY:
        tl.extra.cuda.gdc_wait()


@triton.jit
def after_others(EARLY: tl.constexpr):
    """Do both, where nothing can be done before."""
    let_next(EARLY)
    wait(EARLY)


@cache
def able() -> bool:
    """Tell whether the GPU has it."""
    return torch.cuda.is_available() and torch.cuda.get_device_capability() >= SINCE


def early(rows: int) -> dict[str, bool]:
    """Return what a kernel for so many rows is launched with. For many rows programs that wait only take room
    from those that compute (measured on an H200: docs/benchmarks/h200.md).
    """
    return {"EARLY": True, "launch_pdl": True} if rows <= FEW and able() else {"EARLY": False}
