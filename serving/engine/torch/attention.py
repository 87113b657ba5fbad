"""Attention to slots of the cache, in Triton's language; tests compare it with plain torch.

One pass over memory: what has been written to a slot is read on the device, so one CUDA graph serves all
lengths, while torch's own attention reads whole slots and copies rows that are not contiguous. `attend` has
one query for each row, `attend_after` some for each of few rows.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from .launch import early, start_dependent

BLOCK = 64  # positions at a time; twice as many where there are LONG
LONG = 1024
LINES = 16  # the fewest rows that a product of matrices has
STAGES = 3  # one for float32: 143 KB of shared memory are more than most GPUs have
ENOUGH = 640  # programs that keep a large GPU busy; fewer rows are split among several
MOST_PARTS = 16
FEW_QUERIES, MANY_QUERIES, BUSY = 32, 64, 8192  # of a program; many where there are BUSY queries of all heads
LEAST = tl.constexpr(1e-30)  # a sum of weights is at least 1, and 0 where a slot holds nothing: no NaN then


@triton.jit
def _attend(
    q, k, v, keys, values, lengths, relative, out, tops, sums, parts,
    q_row, q_head, k_row, k_head, v_row, v_head, slot, head, longest, scale, cap,
    HEADS: tl.constexpr, SHARED: tl.constexpr, WIDTH: tl.constexpr, LANES: tl.constexpr, SPLIT: tl.constexpr,
    WINDOW: tl.constexpr, CAP: tl.constexpr,
    FRESH: tl.constexpr, RELATIVE: tl.constexpr, LINES: tl.constexpr, BLOCK: tl.constexpr,
    DEPENDENT: tl.constexpr,
):  # fmt: skip
    """Attend, one program for each row, head and part of the row's length. Without SPLIT it writes the
    result, otherwise the input of `_join`: the highest score, the sum of weights, the weighted sum of values.
    SHARED: query heads for each key head. FRESH: a new key and value are stored after the others, and count
    in the first part.
    """
    start_dependent(DEPENDENT)
    pid, part = tl.program_id(0), tl.program_id(1)
    row, h = (pid // HEADS).to(tl.int64), pid % HEADS
    length = tl.load(lengths + row)
    column = tl.arange(0, LANES)
    wide = within(column, WIDTH, LANES)
    query = tl.load(q + row * q_row + h * q_head + column, mask=wide, other=0.0).to(tl.float32) * scale
    # Products of matrices want 16 rows: the query is the first. What they read is fetched ahead.
    first = tl.arange(0, LINES) == 0
    queries = tl.where(first[:, None], query[None, :], 0.0).to(keys.dtype.element_ty)
    base = row * slot + (h // SHARED) * head
    key_base, value_base = keys + base, values + base
    top = tl.full((LINES,), -1e30, tl.float32)
    total = tl.zeros((LINES,), tl.float32)
    mixed = tl.zeros((LINES, LANES), tl.float32)
    place = length if FRESH else length - 1  # of the query
    per = tl.cdiv(tl.cdiv(length, SPLIT), BLOCK) * BLOCK
    for start in range(part * per, tl.minimum(part * per + per, length), BLOCK):
        at = start + tl.arange(0, BLOCK)
        inside = (at < length) & (place - at < WINDOW) if WINDOW else at < length
        key = tl.load(
            key_base + at[None, :] * WIDTH + column[:, None], mask=inside[None, :] & wide[:, None], other=0.0
        )
        score = _capped(tl.dot(queries, key, input_precision="ieee"), cap, CAP)
        if RELATIVE:
            back = tl.minimum(place - at, longest)
            score += tl.load(relative + back * HEADS + h, mask=inside, other=0.0).to(tl.float32)[None, :]
        score = tl.where(inside[None, :], score, -1e30)
        higher = tl.maximum(top, tl.max(score, 1))
        weight = tl.where(inside[None, :], tl.exp(score - higher[:, None]), 0.0)
        shrink = tl.exp(top - higher)
        total = total * shrink + tl.sum(weight, 1)
        there = inside[:, None] & wide[None, :]
        value = tl.load(value_base + at[:, None] * WIDTH + column[None, :], mask=there, other=0.0)
        mixed = mixed * shrink[:, None] + tl.dot(weight.to(value.dtype), value, input_precision="ieee")
        top = higher
    own_top, own_total = tl.max(tl.where(first, top, -1e30), 0), tl.sum(tl.where(first, total, 0.0), 0)
    own_mixed = tl.sum(tl.where(first[:, None], mixed, 0.0), 0)
    if FRESH:
        after, keeps = length * WIDTH + column, wide & (part == 0) & (h % SHARED == 0)
        key = _kept(k + row * k_row + (h // SHARED) * k_head + column, key_base + after, wide, keeps)
        value = _kept(v + row * v_row + (h // SHARED) * v_head + column, value_base + after, wide, keeps)
        score = _capped(tl.sum(query * key.to(tl.float32), 0), cap, CAP)
        if RELATIVE:
            score += tl.load(relative + h).to(tl.float32)
        own_top, own_total, own_mixed = _and(own_top, own_total, own_mixed, score, value, part == 0)
    if SPLIT == 1:
        answer = own_mixed / tl.maximum(own_total, LEAST)
        tl.store(out + pid * WIDTH + column, answer.to(out.dtype.element_ty), mask=wide)
    else:
        tl.store(tops + pid * SPLIT + part, own_top)
        tl.store(sums + pid * SPLIT + part, own_total)
        tl.store(parts + (pid * SPLIT + part) * WIDTH + column, own_mixed, mask=wide)


@triton.jit
def _capped(score, cap, CAP: tl.constexpr):
    """Return the score x as cap * tanh(x / cap), where there is a CAP."""
    if CAP:
        score = cap * (2.0 * tl.sigmoid(tl.maximum(2.0 * score / cap, -80.0)) - 1.0)
    return score


@triton.jit
def _kept(new, slot, wide, keeps):
    """Store a new key or value, in one of the programs that read it."""
    found = tl.load(new, mask=wide, other=0.0)
    tl.store(slot, found, mask=keeps)
    return found


@triton.jit
def _and(top, total, mixed, score, value, counts):
    """Count one more position, if it is included."""
    score = tl.where(counts, score, -1e30)
    higher = tl.maximum(top, score)
    weight, shrink = tl.where(counts, tl.exp(score - higher), 0.0), tl.exp(top - higher)
    return higher, total * shrink + weight, mixed * shrink + weight * value.to(tl.float32)


@triton.jit
def within(column, WIDTH: tl.constexpr, LANES: tl.constexpr):
    """Return which lanes belong to a row: all, known at compile time, where its width is a power of two."""
    return tl.full((LANES,), 1, tl.int1) if WIDTH == LANES else column < WIDTH


@triton.jit
def _join(
    tops, sums, parts, out,
    WIDTH: tl.constexpr, LANES: tl.constexpr, SPLIT: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """Join the parts of a row and head; an empty part has the lowest possible maximum."""
    start_dependent(DEPENDENT)
    pid = tl.program_id(0)
    part, column = tl.arange(0, SPLIT), tl.arange(0, LANES)
    wide = within(column, WIDTH, LANES)
    top = tl.load(tops + pid * SPLIT + part)
    weight = tl.exp(top - tl.max(top, 0))
    total = tl.maximum(tl.sum(tl.load(sums + pid * SPLIT + part) * weight, 0), LEAST)
    place = (pid * SPLIT + part)[:, None] * WIDTH + column[None, :]
    mixed = tl.load(parts + place, mask=(part >= 0)[:, None] & wide[None, :], other=0.0)
    answer = tl.sum(mixed * weight[:, None], 0) / total
    tl.store(out + pid * WIDTH + column, answer.to(out.dtype.element_ty), mask=wide)


def attend(
    q: Tensor, keys: Tensor, values: Tensor, lengths: Tensor, scale: float,
    fresh: tuple[Tensor, Tensor] | None = None, relative: Tensor | None = None,
    *, window: int = 0, cap: float = 0.0,
) -> Tensor:  # fmt: skip
    """Return [rows, heads, 1, width]: softmax(q k^T * scale + relative) v over the first `lengths` positions
    (of which only the last `window`, unless it is 0), zeros where there are none. Scores are capped unless
    `cap` is 0.

    `q` is [rows, heads, 1, width]; `keys` and `values` [rows, key heads, positions, width] have the same
    strides, of which those of row and head are free, and each key head serves several heads of `q`; `lengths`
    is int32 [rows]; `fresh` is a key and a value [rows, key heads, 1, width] that are stored at `lengths` and
    attended to as well; `relative` [distances, heads] is added by distance, the last entry for all beyond.
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
    lanes, long = triton.next_power_of_2(max(width, LINES)), keys.shape[2] >= LONG and width <= BLOCK
    k, v = fresh or (q, q)
    _attend[(rows * heads, split)](
        q, k, v, keys, values, lengths, q if relative is None else relative, out, *scratch,
        q.stride(0), q.stride(1), k.stride(0), k.stride(1), v.stride(0), v.stride(1),
        keys.stride(0), keys.stride(1), longest, scale, cap or 1.0,
        HEADS=heads, SHARED=heads // keys.shape[1], WIDTH=width, LANES=lanes, SPLIT=split,
        WINDOW=window, CAP=bool(cap), FRESH=fresh is not None, RELATIVE=relative is not None, LINES=LINES,
        BLOCK=2 * BLOCK if long else BLOCK, num_warps=4, num_stages=1 if keys.element_size() == 4 else STAGES,
        **early(rows),
    )  # fmt: skip
    if split > 1:
        sizes = {"WIDTH": width, "LANES": lanes, "SPLIT": split}
        _join[(rows * heads,)](*scratch, out, **sizes, num_warps=1, **early(rows))
    return out


@triton.jit
def _attend_after(
    q, keys, values, slots, starts, counts, out, q_head, q_time, slot, head, scale, cap,
    HEADS: tl.constexpr, SHARED: tl.constexpr, WIDTH: tl.constexpr, LANES: tl.constexpr,
    WINDOW: tl.constexpr, CAP: tl.constexpr, LINES: tl.constexpr, BLOCK: tl.constexpr,
    DEPENDENT: tl.constexpr,
):  # fmt: skip
    """Attend, one program for LINES queries of a head and a row."""
    start_dependent(DEPENDENT)
    h, row = tl.program_id(0), tl.program_id(2)
    start, count = tl.load(starts + row).to(tl.int32), tl.load(counts + row).to(tl.int32)
    line, column = tl.program_id(1) * LINES + tl.arange(0, LINES), tl.arange(0, LANES)
    wide = within(column, WIDTH, LANES)
    own = (line < count)[:, None] & wide[None, :]
    at_q = _first(counts, row) + line
    query = tl.load(q + h * q_head + at_q[:, None] * q_time + column[None, :], mask=own, other=0.0)
    base = tl.load(slots + row).to(tl.int64) * slot + (h // SHARED) * head
    place, end = start + line, start + tl.minimum(tl.program_id(1) * LINES + LINES, count)
    end = tl.where(tl.program_id(1) * LINES < count, end, 0)
    begin = tl.maximum(start + tl.program_id(1) * LINES + 1 - WINDOW, 0) // BLOCK * BLOCK if WINDOW else 0
    top = tl.full((LINES,), -1e30, tl.float32)
    total = tl.zeros((LINES,), tl.float32)
    mixed = tl.zeros((LINES, LANES), tl.float32)
    for at_first in range(begin, end, BLOCK):
        at = at_first + tl.arange(0, BLOCK)
        inside = at < end
        there = inside[None, :] & wide[:, None]
        key = tl.load(keys + base + at[None, :] * WIDTH + column[:, None], mask=there, other=0.0)
        score = _capped(tl.dot(query, key, input_precision="ieee") * scale, cap, CAP)
        back = place[:, None] - at[None, :]
        seen = inside[None, :] & (back >= 0)
        if WINDOW:
            seen = seen & (back < WINDOW)
        score = tl.where(seen, score, -1e30)
        higher = tl.maximum(top, tl.max(score, 1))
        weight = tl.where(seen, tl.exp(score - higher[:, None]), 0.0)
        shrink = tl.exp(top - higher)
        total = total * shrink + tl.sum(weight, 1)
        there = inside[:, None] & wide[None, :]
        value = tl.load(values + base + at[:, None] * WIDTH + column[None, :], mask=there, other=0.0)
        mixed = mixed * shrink[:, None] + tl.dot(weight.to(value.dtype), value, input_precision="ieee")
        top = higher
    answer = mixed / tl.maximum(total, LEAST)[:, None]
    place_out = (at_q[:, None] * HEADS + h) * WIDTH + column[None, :]
    tl.store(out + place_out, answer.to(out.dtype.element_ty), mask=own)


@triton.jit
def _keep(
    k, v, keys, values, slots, starts, counts, k_head, k_time, v_head, v_time, slot, head,
    WIDTH: tl.constexpr, LANES: tl.constexpr, LINES: tl.constexpr,
):  # fmt: skip
    """Store LINES keys and values of a head and a row in its slot."""
    h, row = tl.program_id(0), tl.program_id(2)
    line, column = tl.program_id(1) * LINES + tl.arange(0, LINES)[:, None], tl.arange(0, LANES)[None, :]
    there = (line < tl.load(counts + row)) & (column < WIDTH)
    at = tl.load(starts + row) + line
    place = tl.load(slots + row).to(tl.int64) * slot + h * head + at * WIDTH + column
    given = _first(counts, row) + line
    tl.store(keys + place, tl.load(k + h * k_head + given * k_time + column, mask=there), mask=there)
    tl.store(values + place, tl.load(v + h * v_head + given * v_time + column, mask=there), mask=there)


@triton.jit
def _first(counts, row):
    """Return how many queries the rows before have."""
    first = 0
    for before in range(row):
        first += tl.load(counts + before).to(tl.int32)
    return first


def attend_after(
    q: Tensor, fresh: tuple[Tensor, Tensor], keys: Tensor, values: Tensor,
    where: tuple[Tensor, Tensor, Tensor], scale: float, *, window: int = 0, cap: float = 0.0,
) -> Tensor:  # fmt: skip
    """Return causal attention, [1, heads, n, width], of `q`, of that shape: the queries of some rows, one row
    after another. `where` is, for each row, int64 [rows]: its slot, how many positions the slot holds, and
    how many queries follow them, whose keys and values, `fresh` [1, key heads, n, width], are stored there.
    What comes after the queries of all rows is neither read nor written. `keys` and `values` [slots, key
    heads, positions, width], `window` and `cap` are those of `attend`.
    """
    _, heads, most, width = q.shape
    (k, v), rows = fresh, len(where[0])
    _keep[(k.shape[1], triton.cdiv(most, LINES), rows)](
        k, v, keys, values, *where, k.stride(1), k.stride(2), v.stride(1), v.stride(2),
        keys.stride(0), keys.stride(1),
        WIDTH=width, LANES=triton.next_power_of_2(width), LINES=LINES, num_warps=2,
    )  # fmt: skip
    out = torch.empty(1, most, heads, width, dtype=q.dtype, device=q.device)
    small = keys.element_size() == 2 and width <= 128  # what 64 queries need fits into shared memory
    lines = MANY_QUERIES if small and heads * most >= BUSY else FEW_QUERIES
    _attend_after[(heads, triton.cdiv(most, lines), rows)](
        q, keys, values, *where, out, q.stride(1), q.stride(2), keys.stride(0), keys.stride(1), scale,
        cap or 1.0,
        HEADS=heads, SHARED=heads // keys.shape[1], WIDTH=width,
        LANES=triton.next_power_of_2(max(width, LINES)), WINDOW=window, CAP=bool(cap), LINES=lines,
        BLOCK=BLOCK, num_warps=4, num_stages=1 if keys.element_size() == 4 else STAGES,
        **early(most),
    )  # fmt: skip
    return out.transpose(1, 2)
