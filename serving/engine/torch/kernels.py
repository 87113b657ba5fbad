"""Kernels in Triton's language where torch has no fast one, and attention.py; tests compare each with torch.

Rotation of queries and keys in one launch instead of fourteen. Choice of
the next id in one pass over the logits instead of twenty. A norm that adds biases its input lacks. A product
of one row, which reads memory faster than a matrix product. An activation with its gate.
"""

from __future__ import annotations

from math import gcd
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from .attention import ENOUGH, within
from .launch import FEW, early, grid_wait, launch_dependents, start_dependent

# Of a product of one row: lines of the weight for a program, a warp each, and how many numbers it fetches at
# once.
LINES_AT_ONCE, TILE = 4, 512
MANY_LINES, SHORT_LINES = 2048, 1536
MOST_HEADS = 8  # that a program rotates
WIDE = 1024  # numbers of a row that one program gates
EMPTY = tl.constexpr(-3.0e38)  # below every score


@triton.jit
def _turn(
    q, k, turns, row, head, time, times,
    HEADS: tl.constexpr, SOME: tl.constexpr, HALF: tl.constexpr, LANES: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """Rotate, one program for each row and time, and SOME heads: of queries, then of keys."""
    start_dependent(DEPENDENT)
    at, h = tl.program_id(0).to(tl.int64), tl.program_id(1) * SOME
    column, each = tl.arange(0, LANES), tl.arange(0, SOME)[:, None]
    half = within(column, HALF, LANES)
    cosines = tl.load(turns + at * 2 * HALF + column, mask=half, other=0.0).to(tl.float32)
    sines = tl.load(turns + at * 2 * HALF + HALF + column, mask=half, other=0.0).to(tl.float32)
    place = (at // times) * row + (at % times) * time + each * head + column[None, :]
    x = q + place + h * head if h < HEADS else k + place + (h - HEADS) * head
    there = half[None, :] & (each < SOME)
    first = tl.load(x, mask=there, other=0.0).to(tl.float32)
    second = tl.load(x + HALF, mask=there, other=0.0).to(tl.float32)
    kind = q.dtype.element_ty
    cosines, sines = cosines[None, :], sines[None, :]
    tl.store(x, (first * cosines - second * sines).to(kind), mask=there)
    tl.store(x + HALF, (second * cosines + first * sines).to(kind), mask=there)


def turn(q: Tensor, k: Tensor, turns: Tensor) -> tuple[Tensor, Tensor]:
    """Compute `Decoder.turn` in place: q [rows, heads, time, width] and k [rows, key heads, time, width] with
    the same strides, turns [rows, 1, time, width].
    """
    rows, heads, times, width = q.shape
    half, lines = width // 2, rows * times
    some = gcd(heads, k.shape[1], MOST_HEADS) if lines > FEW else 1  # few lines want many programs
    _turn[(lines, (heads + k.shape[1]) // some)](
        q, k, turns.contiguous(), q.stride(0), q.stride(1), q.stride(2), times,
        HEADS=heads, SOME=some, HALF=half, LANES=triton.next_power_of_2(half), num_warps=max(1, some // 4),
        **early(lines),
    )  # fmt: skip
    return q, k


@triton.jit
def _product(
    x, weight, bias, out, width, lines,
    LINES: tl.constexpr, TILE: tl.constexpr, WHOLE: tl.constexpr, BIAS: tl.constexpr, GELU: tl.constexpr,
    SILU: tl.constexpr, GATED: tl.constexpr, ADD: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """Multiply, one program for some rows of the weight. WHOLE: they end at a multiple of TILE. The first
    tile of the weight is fetched before the kernel that makes `x` has ended, each other before the one before
    it is used. GATED: two rows of the weight, a half of all apart, make one number.
    """
    launch_dependents(DEPENDENT)
    each = tl.program_id(0) * LINES + tl.arange(0, LINES)
    line = each // 2 + each % 2 * (lines // 2) if GATED else each
    there = each < lines
    column = tl.arange(0, TILE)[None, :] + tl.zeros((LINES, 1), tl.int32)
    weights = weight + line.to(tl.int64)[:, None] * width + column
    total = tl.zeros((LINES, TILE), tl.float32)
    w = tl.load(weights, mask=there[:, None] if WHOLE else there[:, None] & (column < width), other=0.0)
    grid_wait(DEPENDENT)
    for start in range(0, width, TILE):
        at = start + column
        value = tl.load(x + at, mask=there[:, None] if WHOLE else at < width, other=0.0).to(tl.float32)
        following = tl.load(weights + start + TILE, mask=there[:, None] & (at + TILE < width), other=0.0)
        total += w.to(tl.float32) * value
        w = following
    answer = tl.sum(total, 1)
    if BIAS:
        answer += tl.load(bias + line, mask=there, other=0.0).to(tl.float32)
    if GATED:
        up, gate = tl.split(tl.reshape(answer, (LINES // 2, 2)))
        answer = (_silu(up) if SILU else _gelu(up)) * gate
        line = tl.program_id(0) * (LINES // 2) + tl.arange(0, LINES // 2)
        there = line < lines // 2
    if GELU:
        answer = _gelu(answer)
    if ADD:
        answer += tl.load(out + line, mask=there, other=0.0).to(tl.float32)
    tl.store(out + line, answer.to(out.dtype.element_ty), mask=there)


def alone(x: Tensor, weight: Tensor) -> bool:
    """Tell whether `product` supports `x` [..., width] and `weight` [lines, width] and is faster: for one
    row, and not where few programs would read long lines (measured on an H200: docs/benchmarks/h200.md).
    """
    lines, width = weight.shape
    return x.numel() == width and (lines >= MANY_LINES or width <= SHORT_LINES)


def product(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, *, gelu: bool = False, gated: str = "",
    onto: Tensor | None = None, out: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Compute x weight^T + bias for one row, from [..., width] and [lines, width], optionally with GELU in
    its tanh form, `gated` ("silu" or "gelu") as by `gate`, or added to `onto` in place: [..., lines]. The
    result goes to `out`, which may have another dtype, if given. No kernel that may still run must write
    `weight`.
    """
    lines, width = weight.shape
    target = onto if onto is not None else out
    if target is None:
        made = lines // 2 if gated else lines
        target = torch.empty(*x.shape[:-1], made, dtype=x.dtype, device=x.device)
    _product[(triton.cdiv(lines, LINES_AT_ONCE),)](
        x.contiguous(), weight, weight if bias is None else bias, target, width, lines,
        LINES=LINES_AT_ONCE, TILE=TILE, WHOLE=width % TILE == 0, BIAS=bias is not None, GELU=gelu,
        SILU=gated == "silu", GATED=bool(gated), ADD=onto is not None, num_warps=LINES_AT_ONCE, **early(1),
    )  # fmt: skip
    return target


@triton.jit
def _gate(x, out, width, SILU: tl.constexpr, BLOCK: tl.constexpr, DEPENDENT: tl.constexpr):
    """Compute a block of a row."""
    start_dependent(DEPENDENT)
    row, at = tl.program_id(0).to(tl.int64), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < width
    up = tl.load(x + row * 2 * width + at, mask=inside, other=0.0).to(tl.float32)
    gate = tl.load(x + row * 2 * width + width + at, mask=inside, other=0.0).to(tl.float32)
    answer = _silu(up) if SILU else _gelu(up)
    tl.store(out + row * width + at, (answer * gate).to(out.dtype.element_ty), mask=inside)


@triton.jit
def _silu(x):
    return x * tl.sigmoid(tl.maximum(x, -80.0))


@triton.jit
def _gelu(x):
    """Compute GELU's tanh form: 0.5 * (1 + tanh(u)) = sigmoid(2 * u)."""
    return x * tl.sigmoid(tl.maximum(1.5957691216 * (x + 0.044715 * x * x * x), -80.0))


def gate(x: Tensor, *, silu: bool) -> Tensor:
    """Multiply SiLU or GELU (tanh form) of the first half of each row with the second: [..., 2 * width] to
    [..., width].
    """
    width = x.shape[-1] // 2
    out = torch.empty(*x.shape[:-1], width, dtype=x.dtype, device=x.device)
    rows = x.numel() // (2 * width)
    _gate[(rows, triton.cdiv(width, WIDE))](
        x.contiguous(), out, width, SILU=silu, BLOCK=WIDE, num_warps=4, **early(rows)
    )
    return out


@triton.jit
def _norm(
    x, extra, weight, bias, out, width, epsilon, RMS: tl.constexpr, BIAS: tl.constexpr, BLOCK: tl.constexpr,
    DEPENDENT: tl.constexpr,
):  # fmt: skip
    """Normalize a row."""
    start_dependent(DEPENDENT)
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    inside = at < width
    value = tl.load(x + row * width + at, mask=inside, other=0.0).to(tl.float32)
    value += tl.load(extra + at, mask=inside, other=0.0)
    mean = 0.0 if RMS else tl.sum(value, 0) / width
    centred = tl.where(inside, value - mean, 0.0)
    answer = centred * tl.rsqrt(tl.sum(centred * centred, 0) / width + epsilon)
    answer *= tl.load(weight + at, mask=inside, other=0.0).to(tl.float32)
    if BIAS:
        answer += tl.load(bias + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row * width + at, answer.to(out.dtype.element_ty), mask=inside)


def norm(
    x: Tensor, extra: Tensor, weight: Tensor, bias: Tensor | None, epsilon: float, *, rms: bool
) -> Tensor:
    """Compute layer or RMS norm of x + extra over the last axis; `extra` is float32 [width]."""
    out, width = torch.empty_like(x), x.shape[-1]
    rows = x.numel() // width
    _norm[(rows,)](
        x, extra, weight, weight if bias is None else bias, out, width, epsilon, RMS=rms,
        BIAS=bias is not None, BLOCK=triton.next_power_of_2(width), num_warps=4, **early(rows),
    )  # fmt: skip
    return out


@triton.jit
def _scan(
    logits, bias, rows, first_time, latest_start, text_end, end_id, min_tokens, generated, last, before,
    last_time, floats, ids, vocabulary, LOWEST: tl.constexpr, PARTS: tl.constexpr, BLOCK: tl.constexpr,
    DEPENDENT: tl.constexpr,
):  # fmt: skip
    """Scan a part of a row's logits: for text and for timestamps the highest that the rules allow, the sum of
    exponentials relative to it, and the likeliest id that may be chosen.
    """
    start_dependent(DEPENDENT)
    row, part = tl.program_id(0), tl.program_id(1)
    slot = tl.load(rows + row)
    first, end = tl.load(first_time + slot), tl.load(end_id + slot)
    n, at_last, at_before = tl.load(generated + slot), tl.load(last + slot), tl.load(before + slot)
    reached, spoken = tl.load(last_time + slot), tl.load(text_end + slot)
    latest = first + tl.load(latest_start + slot)
    early = n < tl.load(min_tokens + slot)
    timed = first < vocabulary
    after_time = (n > 0) & (at_last >= first)
    after_pair = after_time & ((n < 2) | (at_before >= first))
    open_time = after_time & (after_pair == 0)
    floor = reached + tl.where(open_time, 0, 1)
    lane = tl.arange(0, BLOCK)
    text_top, time_top = (
        tl.full((BLOCK,), EMPTY, tl.float32),
        tl.full((BLOCK,), EMPTY, tl.float32),
    )
    text_sum, time_sum = tl.zeros((BLOCK,), tl.float32), tl.zeros((BLOCK,), tl.float32)
    text_best, time_best = text_top, time_top
    text_id, time_id = tl.zeros((BLOCK,), tl.int32), tl.zeros((BLOCK,), tl.int32)
    per = tl.cdiv(tl.cdiv(vocabulary, PARTS), BLOCK) * BLOCK
    for start in range(part * per, tl.minimum(part * per + per, vocabulary), BLOCK):
        at = start + lane
        inside = at < vocabulary
        score = tl.load(logits + row.to(tl.int64) * vocabulary + at, mask=inside, other=EMPTY)
        score += tl.load(bias + slot * vocabulary + at, mask=inside, other=0.0)
        is_time = at >= first
        never = (n == 0) & ((at < first) | (at > latest))
        never = never | (after_pair & is_time) | (open_time & (at < spoken))
        never = never | ((reached >= 0) & is_time & (at < floor))
        score = tl.where(inside & timed & never, LOWEST, score)
        choice = tl.where(early & (at == end), LOWEST, score)
        text = tl.where(is_time, EMPTY, score)
        time = tl.where(is_time, score, EMPTY)
        higher = tl.maximum(text_top, text)
        text_sum = text_sum * _shrink(text_top, higher) + _shrink(text, higher)
        text_top = higher
        higher = tl.maximum(time_top, time)
        time_sum = time_sum * _shrink(time_top, higher) + _shrink(time, higher)
        time_top = higher
        better = (is_time == 0) & (choice > text_best)
        text_best, text_id = tl.where(better, choice, text_best), tl.where(better, at, text_id)
        better = is_time & (choice > time_best)
        time_best, time_id = tl.where(better, choice, time_best), tl.where(better, at, time_id)
    place = (row * PARTS + part) * 6
    _store_part(floats + place, ids + place, text_top, text_sum, text_best, text_id)
    _store_part(floats + place + 3, ids + place + 3, time_top, time_sum, time_best, time_id)


@triton.jit
def _shrink(value, top):
    """Return exp(value - top), 0 where there is nothing yet."""
    return tl.where(value == EMPTY, 0.0, tl.exp(value - top))


@triton.jit
def _store_part(floats, ids, tops, sums, bests, at):
    """Reduce all lanes to one and store it."""
    top, best = tl.max(tops, 0), tl.max(bests, 0)
    tl.store(floats, top)
    tl.store(floats + 1, tl.sum(sums * _shrink(tops, top), 0))
    tl.store(floats + 2, best)
    tl.store(ids, tl.min(tl.where(bests == best, at, 2147483647), 0))


@triton.jit
def _pick(
    rows, first_time, generated, last, before, last_time, floats, ids, chosen, log_probs, newest, vocabulary,
    PARTS: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """Choose a row's id from its parts, and update the slot's state."""
    start_dependent(DEPENDENT)
    row = tl.program_id(0)
    slot = tl.load(rows + row)
    first = tl.load(first_time + slot)
    place = (row * PARTS + tl.arange(0, PARTS)) * 6
    text_tops, time_tops = tl.load(floats + place), tl.load(floats + place + 3)
    text_top, time_top = tl.max(text_tops, 0), tl.max(time_tops, 0)
    text_sum = tl.sum(tl.load(floats + place + 1) * _shrink(text_tops, text_top), 0)
    time_sum = tl.sum(tl.load(floats + place + 4) * _shrink(time_tops, time_top), 0)
    text_bests, time_bests = tl.load(floats + place + 2), tl.load(floats + place + 5)
    text_best, time_best = tl.max(text_bests, 0), tl.max(time_bests, 0)
    text_id = tl.min(tl.where(text_bests == text_best, tl.load(ids + place), 2147483647), 0)
    time_id = tl.min(tl.where(time_bests == time_best, tl.load(ids + place + 3), 2147483647), 0)
    only_time = (first < vocabulary) & (time_top + tl.log(tl.maximum(time_sum, 1e-30)) > text_top)
    take_time = only_time | (time_best > text_best)
    token = tl.where(take_time, time_id, text_id).to(tl.int64)
    best = tl.where(take_time, time_best, text_best)
    top = tl.where(only_time, time_top, tl.maximum(text_top, time_top))
    total = time_sum * _shrink(time_top, top) + tl.where(only_time, 0.0, text_sum * _shrink(text_top, top))
    tl.store(chosen + slot, token)
    tl.store(newest + slot, token)
    tl.store(log_probs + slot, best - top - tl.log(total))
    tl.store(before + slot, tl.load(last + slot))
    tl.store(last + slot, token)
    tl.store(generated + slot, tl.load(generated + slot) + 1)
    tl.store(last_time + slot, tl.where(token >= first, token, tl.load(last_time + slot)))


def choose(
    choices: Any, logits: Tensor, rows: Tensor, chosen: Tensor, log_probs: Tensor, ids: Tensor
) -> None:
    """Compute `Choices.choose` for rows without penalties and sampling, into `chosen`, `log_probs` and `ids`
    [slots]. `logits` is float32 [rows, vocabulary], without the bias.
    """
    count, vocabulary = logits.shape
    parts = 1 << (min(32, max(1, ENOUGH // count)).bit_length() - 1)
    floats = torch.empty(count * parts * 6, device=logits.device, dtype=torch.float32)
    places = torch.empty(count * parts * 6, device=logits.device, dtype=torch.int32)
    c, rows = choices, rows.contiguous()
    _scan[(count, parts)](
        logits, c.bias, rows, c.first_time, c.latest_start, c.text_end, c.end_id, c.min_tokens, c.generated,
        c.last, c.before, c.last_time, floats, places, vocabulary, LOWEST=-1e9, PARTS=parts, BLOCK=512,
        num_warps=4, **early(count),
    )  # fmt: skip
    _pick[(count,)](
        rows, c.first_time, c.generated, c.last, c.before, c.last_time, floats, places, chosen, log_probs,
        ids, vocabulary, PARTS=parts, num_warps=1, **early(count),
    )  # fmt: skip
