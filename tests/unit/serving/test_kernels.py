"""Kernels in Triton's language compared with plain torch: on a GPU, or in Triton's interpreter on a CPU."""

from __future__ import annotations

import copy
import dataclasses
import itertools
import random
from collections.abc import Callable

import numpy as np
import pytest
import torch

pytest.importorskip("triton", reason="this build of torch brings no Triton")

from serving.architectures.layers import turned
from serving.engine.sampling import Sampling, TimestampRules
from serving.engine.torch import kernels, launch
from serving.engine.torch.attention import attend, attend_after
from serving.engine.torch.caches import plain_attend, plain_attend_after
from serving.engine.torch.choosing import Choices
from serving.engine.torch.device import Device
from serving.engine.torch.kernels import choose, gate, norm, product, turn

pytestmark = pytest.mark.slow  # torch, and Triton's interpreter

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
EVERY = 1 if DEVICE == "cuda" else 2  # of two tables' rows: Triton's interpreter takes seconds for each


SIZES = [(1, 40, 16, 1), (3, 300, 32, 4), (6, 130, 64, 1), (3, 300, 40, 2), (1, 1100, 64, 1)]
ATTENDED = list(itertools.product([False, True], SIZES, ["nothing", "views", "turned"]))


@pytest.mark.parametrize(("relative", "size", "kept"), ATTENDED[::EVERY])
def test_attention_of_one_query_is_torchs(relative: bool, size: tuple[int, int, int, int], kept: str) -> None:
    """Rows of all lengths, heads that share keys, widths that are no power of two, slots that are not
    contiguous, and NaN where nothing has been written. New keys and values are parts of a larger tensor, or
    keys, that were turned, are one of their own.
    """
    torch.manual_seed(3)
    rows, positions, width, shared = size
    heads, own = 4, 4 // shared
    arena = torch.randn(rows, 6, own, positions, width, device=DEVICE)
    lengths = torch.randint(0 if kept != "nothing" else 1, positions - 1, (rows,), device=DEVICE)
    lengths = lengths.to(torch.int32)
    packed = torch.randn(rows, 1, heads + 2 * own, width, device=DEVICE).transpose(1, 2)
    q, k, v = packed.split([heads, own, own], 1)
    fresh = None if kept == "nothing" else (k.contiguous() if kept == "turned" else k, v)
    table = torch.randn(33, heads, device=DEVICE) if relative else None
    keys, values = arena[:, 2], arena[:, 3]
    beyond = torch.arange(positions, device=DEVICE) >= lengths[:, None]
    for part in (keys, values):
        part.masked_fill_(beyond[:, None, :, None], torch.nan)
    theirs = arena.nan_to_num()
    expected = plain_attend(q, theirs[:, 2], theirs[:, 3], lengths, 0.3, fresh, table)
    halves = [part.half() for part in (keys, values)]
    found = attend(q, keys, values, lengths, 0.3, fresh, table)
    assert found.shape == (rows, heads, 1, width)
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(arena.nan_to_num(), theirs, atol=0, rtol=0)
    half = attend(q.half(), *halves, lengths, 0.3, fresh and (fresh[0].half(), fresh[1].half()), table)
    torch.testing.assert_close(half.float(), expected, atol=1e-2, rtol=1e-2)


@pytest.mark.parametrize(("window", "cap"), [(9, 0.0), (0, 2.5), (100, 1.0)])
@pytest.mark.parametrize(("rows", "positions"), [(3, 300), (1, 1100)])
def test_attention_within_a_window_is_torchs(rows: int, positions: int, window: int, cap: float) -> None:
    """A window that ends inside a block, one of several blocks, capped scores; in parts and whole."""
    torch.manual_seed(3)
    arena = torch.randn(rows, 2, 2, positions, 32, device=DEVICE)
    lengths = torch.randint(0, positions - 1, (rows,), device=DEVICE, dtype=torch.int32)
    q, k, v = (torch.randn(rows, heads, 1, 32, device=DEVICE) for heads in (4, 2, 2))
    theirs = arena.clone()
    limits = {"window": window, "cap": cap}
    expected = plain_attend(q, theirs[:, 0], theirs[:, 1], lengths, 0.3, (k, v), **limits)
    found = attend(q, arena[:, 0], arena[:, 1], lengths, 0.3, (k, v), **limits)
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)


PIECES = [(0, 5, 4, 32, 2), (100, 33, 4, 40, 1), (64, 64, 2, 64, 1), (17, 65, 8, 16, 4)]
LARGE = [(30, 260, 32, 128, 4)] * (DEVICE == "cuda")  # a minute in Triton's interpreter
READ = list(itertools.product(PIECES + LARGE, [(0, 0.0), (9, 0.0), (70, 2.5)]))


@pytest.mark.parametrize(("piece", "limits"), READ[::EVERY])
def test_attention_after_what_was_read_is_torchs(
    piece: tuple[int, int, int, int, int], limits: tuple[int, float]
) -> None:
    """Blocks that end anywhere, one query's window over several, and NaN where nothing was written. Queries
    of one row, of a second after it, of none, and some that are nobody's.
    """
    torch.manual_seed(3)
    start, count, heads, width, shared = piece
    window, cap = limits
    few = heads // shared
    arena = torch.randn(3, 4, few, 300, width, device=DEVICE)
    arena[:, :, :, start:] = torch.nan
    packed = torch.randn(1, count + 10, heads + 2 * few, width, device=DEVICE).transpose(1, 2)
    where = tuple(torch.tensor(one, device=DEVICE) for one in ([1, 0, 2], [start, 3, 9], [count, 6, 0]))

    def made(attended: Callable[..., torch.Tensor], dtype: torch.dtype) -> list[torch.Tensor]:
        q, k, v = packed.to(dtype).split([heads, few, few], 1)
        slots = arena.to(dtype, copy=True)
        found = attended(q, (k, v), slots[:, 1], slots[:, 2], where, 0.3, window=window, cap=cap)
        return [found[:, :, : count + 6], slots]

    expected = made(plain_attend_after, torch.float32)
    assert expected[1][1, 1:3, :, start : start + count].isfinite().all()
    for dtype, most in ((torch.float32, 1e-4), (torch.half, 1e-2)):
        for found, wanted in zip(made(attend_after, dtype), expected, strict=True):
            torch.testing.assert_close(found.float(), wanted, atol=most, rtol=most, equal_nan=True)


@pytest.mark.parametrize(("rows", "positions"), [(1, 1024), (2, 40)])
def test_attention_to_nothing_is_zeros(rows: int, positions: int) -> None:
    """A slot that no encoder has filled: NaN would go through all layers. In parts, and whole."""
    q, slot = (
        torch.randn(rows, 4, 1, 16, device=DEVICE),
        torch.randn(rows, 2, 4, positions, 16, device=DEVICE),
    )
    lengths = torch.zeros(rows, dtype=torch.int32, device=DEVICE)
    assert not attend(q, slot[:, 0], slot[:, 1], lengths, 0.3).any()


@pytest.mark.parametrize("rms", [False, True])
def test_norm_is_torchs(rms: bool) -> None:
    torch.manual_seed(3)
    x, weight, extra = torch.randn(7, 96), torch.randn(96), torch.randn(96)
    bias = None if rms else torch.randn(96)
    x, weight, extra, bias = (one if one is None else one.to(DEVICE) for one in (x, weight, extra, bias))
    plain = torch.nn.functional.rms_norm if rms else torch.nn.functional.layer_norm
    rest = (weight,) if rms else (weight, bias)
    expected = plain(x + extra, (96,), *rest, eps=1e-5)
    torch.testing.assert_close(norm(x, extra, weight, bias, 1e-5, rms=rms), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("width", "lines"), [(96, 6), (1024, 5), (1100, 2)])
@pytest.mark.parametrize("kind", ["plain", "bias", "GELU", "onto", "out"])
def test_a_product_of_one_row_is_torchs(kind: str, width: int, lines: int) -> None:
    torch.manual_seed(3)
    x, weight = torch.randn(1, 1, width, device=DEVICE), torch.randn(lines, width, device=DEVICE) / 9
    bias, given = torch.randn(lines, device=DEVICE), torch.randn(1, 1, lines, device=DEVICE)
    expected = torch.nn.functional.linear(x, weight, None if kind in ("plain", "onto") else bias)
    if kind == "GELU":
        expected = torch.nn.functional.gelu(expected, approximate="tanh")
    elif kind == "onto":
        expected = expected + given
    options = {"GELU": {"gelu": True}, "onto": {"onto": given}, "out": {"out": torch.empty_like(given)}}
    found = product(x, weight, None if kind in ("plain", "onto") else bias, **options.get(kind, {}))
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(("width", "lines"), [(96, 6), (1024, 4), (1100, 2)])
@pytest.mark.parametrize("gated", ["silu", "gelu"])
def test_a_product_of_one_row_with_its_gate_is_torchs(gated: str, width: int, lines: int) -> None:
    torch.manual_seed(4)
    x, weight = torch.randn(1, width, device=DEVICE), torch.randn(lines, width, device=DEVICE) / 9
    bias = torch.randn(lines, device=DEVICE)
    first, second = torch.nn.functional.linear(x, weight, bias).chunk(2, -1)
    silu, gelu = torch.nn.functional.silu, torch.nn.functional.gelu
    made = silu(first) if gated == "silu" else gelu(first, approximate="tanh")
    torch.testing.assert_close(product(x, weight, bias, gated=gated), made * second, atol=1e-4, rtol=1e-4)


def test_each_kernel_waits_for_the_one_before() -> None:
    """A chain of products, gates, norms and rotations, whose inputs are still being computed when the next
    kernel is launched; on a GPU with large weights, many times.
    """
    torch.manual_seed(5)
    width, rounds = (4096, 200) if DEVICE == "cuda" else (64, 2)
    dtype = torch.half if DEVICE == "cuda" else torch.float32
    up, down = (
        torch.randn(*size, device=DEVICE, dtype=dtype) / width**0.5
        for size in ((4 * width, width), (width, 2 * width))
    )
    scale, zeros = torch.ones(width, device=DEVICE, dtype=dtype), torch.zeros(width, device=DEVICE)
    found = x = torch.randn(1, width, device=DEVICE, dtype=dtype)
    for _ in range(rounds):
        gated = product(norm(found, zeros, scale, None, 1e-5, rms=True), up, gated="silu")
        found = product(gated, down, onto=found.clone())
    expected = x.float()
    for _ in range(rounds):
        row = torch.nn.functional.rms_norm(expected, (width,), None, 1e-5)
        first, second = torch.nn.functional.linear(row, up.float()).chunk(2, -1)
        expected = expected + torch.nn.functional.linear(
            torch.nn.functional.silu(first) * second, down.float()
        )
    assert torch.nn.functional.cosine_similarity(found.float(), expected).item() > 0.999


def test_few_rows_of_one_gpu_are_launched_early(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not those of a GPU that cannot do it."""
    for able, rows, expected in ((True, 64, True), (True, 65, False), (False, 1, False)):
        monkeypatch.setattr(launch, "able", lambda able=able: able)
        assert launch.early(rows)["DEPENDENT"] is expected
        assert launch.early(rows).get("launch_pdl", False) is expected


@pytest.mark.parametrize("silu", [False, True])
@pytest.mark.parametrize("width", [40, 1100])
def test_a_gate_is_torchs(width: int, silu: bool) -> None:
    torch.manual_seed(3)
    x = torch.randn(3, 2, 2 * width, device=DEVICE) * 4
    first, second = x.chunk(2, -1)
    made = torch.nn.functional.silu(first) if silu else torch.nn.functional.gelu(first, approximate="tanh")
    torch.testing.assert_close(gate(x, silu=silu), made * second, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("times", [5, 30])
@pytest.mark.parametrize("width", [16, 40])
def test_turned_queries_and_keys_are_plain_torchs(width: int, times: int) -> None:
    """In one product, whose values stay as they are; a head at a time, and two."""
    torch.manual_seed(3)
    packed = torch.randn(3, times, 4 + 2 * 2, width, device=DEVICE)
    turns = torch.randn(3, 1, times, width, device=DEVICE)
    q, k, v = packed.transpose(1, 2).split([4, 2, 2], 1)
    expected, kept = (turned(q, turns), turned(k, turns)), v.clone()
    for found, wanted in zip(turn(q, k, turns), expected, strict=True):
        torch.testing.assert_close(found, wanted)
    assert torch.equal(v, kept)


@pytest.mark.parametrize("seed", range(3))
def test_chosen_ids_are_plain_torchs(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """With and without timestamp rules, in every state that a text can be in, early ends forbidden."""
    if DEVICE == "cpu":  # in four parts instead of 32: most of them would have nothing to do
        monkeypatch.setattr(kernels, "ENOUGH", 12)
    torch.manual_seed(seed)
    rng = random.Random(seed)
    device, slots, vocabulary, first, end = Device(DEVICE, torch.float32), 6, 700, 600, 580
    choices = Choices.empty(device, slots, vocabulary, 50)
    rows = torch.tensor([4, 0, 3], device=DEVICE)
    asked = [
        Sampling(
            max_tokens=9,
            end_id=end,
            min_tokens=rng.choice([0, 4]),
            bias=np.float32(np.random.default_rng(seed).normal(size=vocabulary)),
            timestamps=rng.choice([None, TimestampRules(first, end)]),
        )
        for _ in rows
    ]
    choices.begin(device, rows.tolist(), asked, [(1, 2)] * 3)
    outs = [
        torch.zeros(slots, device=DEVICE, dtype=kind) for kind in (torch.int64, torch.float32, torch.int64)
    ]
    for _ in range(4):
        logits = torch.randn(3, vocabulary, device=DEVICE) * 2
        logits[:, first:] += rng.choice([-3.0, 0.0, 3.0])
        logits[:, end] += rng.choice([0.0, 6.0])
        other = copy.deepcopy(choices)
        token, log_prob = other.choose(logits, rows, plain=True)
        choose(choices, logits, torch.stack([rows, rows], 1)[:, 0], *outs)  # a view, as of a table's column
        assert torch.equal(outs[0][rows], token)
        assert torch.equal(outs[2][rows], token)
        torch.testing.assert_close(outs[1][rows], log_prob, atol=1e-4, rtol=1e-4)
        for each in dataclasses.fields(choices):
            assert torch.equal(getattr(choices, each.name), getattr(other, each.name)), each.name
