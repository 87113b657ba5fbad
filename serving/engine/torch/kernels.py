"""Attention of one query per row against keys and values in slots, in Triton's language: one pass over
memory, and each row's own length is read on the device, so that one CUDA graph serves all lengths.

torch's own attention reads whole slots whatever is in them, and copies rows that are not contiguous.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 64
ENOUGH = 512  # programs that keep a large GPU busy; fewer rows are split among several
MOST_PARTS = 16


@triton.jit
def _attend(
    q, keys, values, lengths, relative, out, tops, sums, parts,
    q_row, q_head, slot, head, extra, longest, scale,
    HEADS: tl.constexpr, WIDTH: tl.constexpr, SPLIT: tl.constexpr, RELATIVE: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """A program for each row, head and part of the row's length. Without SPLIT the answer itself, else what
    `_join` makes it of: the highest score, the sum of weights, the weighted sum of values.
    """
    pid, part = tl.program_id(0), tl.program_id(1)
    row, h = (pid // HEADS).to(tl.int64), pid % HEADS
    length = tl.load(lengths + row) + extra
    column = tl.arange(0, WIDTH)
    query = tl.load(q + row * q_row + h * q_head + column).to(tl.float32) * scale
    key_base, value_base = keys + row * slot + h * head, values + row * slot + h * head
    top = tl.full((1,), -1e30, tl.float32)
    total = tl.zeros((1,), tl.float32)
    mixed = tl.zeros((WIDTH,), tl.float32)
    per = tl.cdiv(tl.cdiv(length, SPLIT), BLOCK) * BLOCK
    for start in range(part * per, tl.minimum(part * per + per, length), BLOCK):
        at = start + tl.arange(0, BLOCK)
        inside = at < length
        place = at[:, None] * WIDTH + column[None, :]
        key = tl.load(key_base + place, mask=inside[:, None], other=0.0).to(tl.float32)
        score = tl.sum(key * query[None, :], 1)
        if RELATIVE:
            back = tl.minimum(length - 1 - at, longest)
            score += tl.load(relative + back * HEADS + h, mask=inside, other=0.0).to(tl.float32)
        score = tl.where(inside, score, -1e30)
        higher = tl.maximum(top, tl.max(score, 0))
        weight = tl.where(inside, tl.exp(score - higher), 0.0)
        shrink = tl.exp(top - higher)
        total = total * shrink + tl.sum(weight, 0)
        value = tl.load(value_base + place, mask=inside[:, None], other=0.0).to(tl.float32)
        mixed = mixed * shrink + tl.sum(weight[:, None] * value, 0)
        top = higher
    if SPLIT == 1:
        tl.store(out + pid * WIDTH + column, (mixed / total).to(out.dtype.element_ty))
    else:
        at_part = pid * SPLIT + part
        tl.store(tops + at_part + tl.arange(0, 1), top)
        tl.store(sums + at_part + tl.arange(0, 1), total)
        tl.store(parts + at_part * WIDTH + column, mixed)


@triton.jit
def _join(tops, sums, parts, out, WIDTH: tl.constexpr, SPLIT: tl.constexpr):
    """The answer of a row and head from its parts; an empty part has the lowest of tops."""
    pid = tl.program_id(0)
    part, column = tl.arange(0, SPLIT), tl.arange(0, WIDTH)
    top = tl.load(tops + pid * SPLIT + part)
    weight = tl.exp(top - tl.max(top, 0))
    total = tl.sum(tl.load(sums + pid * SPLIT + part) * weight, 0)
    mixed = tl.load(parts + (pid * SPLIT + part)[:, None] * WIDTH + column[None, :])
    answer = tl.sum(mixed * weight[:, None], 0) / total
    tl.store(out + pid * WIDTH + column, answer.to(out.dtype.element_ty))


def attend(
    q: Tensor, keys: Tensor, values: Tensor, lengths: Tensor, extra: int, scale: float, relative: Any = None
) -> Tensor:
    """[rows, heads, 1, width]: softmax(q k^T * scale + relative) v over the first lengths + extra positions.

    `q`: [rows, heads, 1, width], width a power of two; `keys`, `values`: [rows, heads, positions, width] with
    the same strides, of which row and head are free; `lengths`: int32 [rows]; `relative`: [distances, heads],
    added by how far back a position lies, the last for all beyond.
    """
    rows, heads, _, width = q.shape
    out = torch.empty(rows, heads, 1, width, dtype=q.dtype, device=q.device)
    wanted = min(MOST_PARTS, max(1, ENOUGH // (rows * heads)), max(1, keys.shape[2] // (2 * BLOCK)))
    split = 1 << (wanted.bit_length() - 1)
    scratch = [
        torch.empty(rows * heads * split * size if split > 1 else 1, device=q.device, dtype=torch.float32)
        for size in (1, 1, width)
    ]
    longest = 0 if relative is None else relative.shape[0] - 1
    _attend[(rows * heads, split)](
        q, keys, values, lengths, q if relative is None else relative, out, *scratch,
        q.stride(0), q.stride(1), keys.stride(0), keys.stride(1), extra, longest, scale,
        HEADS=heads, WIDTH=width, SPLIT=split, RELATIVE=relative is not None, BLOCK=BLOCK, num_warps=4,
    )  # fmt: skip
    if split > 1:
        _join[(rows * heads,)](*scratch, out, WIDTH=width, SPLIT=split, num_warps=1)
    return out
