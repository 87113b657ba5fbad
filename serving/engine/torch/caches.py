"""Keys and values of running rows on the device, a slot for each row, and how a decoder's layers attend to
them while reading prompts and while stepping.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from serving.architectures.layers import capped
from serving.architectures.shape import Shape
from serving.architectures.transformer import Decoder

from .device import Device, attention

HIDDEN = -1e4  # in float16 as well, a score that gives no weight
# Told of each layer's queries at its memory, [rows, heads, new, width].
Watch = Callable[[int, Tensor], None]


@dataclass
class Arena:
    """Keys and values of all slots.

    Attributes:
        own: [slots, 2 * layers, key heads, positions, width], keys and values of each layer in turn
        memory: the same for encoder outputs
        length: int32 [slots], how much of `own` is filled, as `memory_length` for `memory`
    """

    own: Tensor
    memory: Tensor | None
    length: Tensor
    memory_length: Tensor

    @classmethod
    def empty(cls, shape: Shape, device: Device, slots: int, positions: int, memory: int) -> Arena:
        """Allocate it, empty."""
        sizes = (slots, 2 * shape.decoder_layers, shape.cached_heads)
        lengths = (device.zeros(slots, dtype=torch.int32) for _ in range(2))
        return cls(
            device.zeros(*sizes, positions, shape.head_width),
            device.zeros(*sizes, memory, shape.head_width) if memory else None,
            *lengths,
        )

    def copy(self, target: int, source: int, *, memory: bool) -> None:
        """Copy the contents of one slot into another."""
        for tensor in (self.own, self.length):
            tensor[target].copy_(tensor[source])
        if memory and self.memory is not None:
            self.memory[target].copy_(self.memory[source])
            self.memory_length[target].copy_(self.memory_length[source])


class Reading:
    """Caches of rows that read their prompts: ids [rows, n], padded at the end, into `slots` int64 [rows].
    With `more`, ids [1, n] of rows one after another: how many of each were read before, and are read now,
    int64 [rows] each. `kernels` is attention.py or None.
    """

    def __init__(
        self,
        arena: Arena,
        decoder: Decoder,
        slots: Tensor,
        watch: Watch | None = None,
        more: tuple[Tensor, Tensor] | None = None,
        kernels: Any = None,
    ) -> None:
        self.arena, self.decoder, self.slots, self.watch = arena, decoder, slots, watch
        self.more, self.attend = more, kernels.attend_after if kernels else plain_attend_after

    def own(self, layer: int, q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
        """See Caches: padding comes after every id that counts, so a causal mask is enough."""
        new = k.shape[2]
        relative, shape = self.decoder.relative, self.decoder.shape
        window = shape.window_of(layer)
        if self.more is not None:
            return self._more(layer, q, (k, v), scale, window)
        self.arena.own[self.slots, 2 * layer, :, :new] = k
        self.arena.own[self.slots, 2 * layer + 1, :, :new] = v
        if relative is None and not shape.score_cap and not 0 < window < new:
            with attention():
                return F.scaled_dot_product_attention(
                    q, k, v, is_causal=True, scale=scale, enable_gqa=q.shape[1] != k.shape[1]
                )
        at, bias = torch.arange(new, device=k.device)[None], None if relative is None else relative.weight
        return _attended(q, k, v, at, scale, relative=bias, window=window, cap=shape.score_cap)

    def _more(self, layer: int, q: Tensor, fresh: tuple[Tensor, Tensor], scale: float, window: int) -> Tensor:
        """Attend from ids that follow others; one CUDA graph serves all starts."""
        assert self.more is not None
        keys, values = (self.arena.own[:, 2 * layer + i] for i in range(2))
        where, cap = (self.slots, *self.more), self.decoder.shape.score_cap
        return self.attend(q, fresh, keys, values, where, scale, window=window, cap=cap)

    def memory(self, layer: int, q: Tensor, scale: float) -> Tensor:
        assert self.arena.memory is not None
        if self.watch:
            self.watch(layer, q)
        keys, values = (self.arena.memory[self.slots, 2 * layer + i] for i in range(2))
        places = torch.arange(keys.shape[2], device=keys.device)
        seen = places < self.arena.memory_length[self.slots, None]
        with attention():
            return F.scaled_dot_product_attention(q, keys, values, attn_mask=seen[:, None, None], scale=scale)


class Stepping:
    """Caches of the rows in the first slots, each of which brings one id."""

    def __init__(
        self, arena: Arena, decoder: Decoder, rows: int, kernels: Any = None, watch: Watch | None = None
    ) -> None:
        self.arena, self.decoder, self.rows, self.watch = arena, decoder, rows, watch
        self.attend = kernels.attend if kernels else plain_attend
        self.length = arena.length[:rows]

    def own(self, layer: int, q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
        keys, values = (self.arena.own[: self.rows, 2 * layer + i] for i in range(2))
        relative = None if self.decoder.relative is None else self.decoder.relative.weight
        shape = self.decoder.shape
        window, cap = shape.window_of(layer), shape.score_cap
        return self.attend(q, keys, values, self.length, scale, (k, v), relative, window=window, cap=cap)

    def memory(self, layer: int, q: Tensor, scale: float) -> Tensor:
        assert self.arena.memory is not None
        if self.watch:
            self.watch(layer, q)
        keys, values = (self.arena.memory[: self.rows, 2 * layer + i] for i in range(2))
        return self.attend(q, keys, values, self.arena.memory_length[: self.rows], scale)


class Mixed:
    """Caches of ids [1, rows + n]: one of each of the rows that step, then those of rows that read more of
    their prompts.
    """

    def __init__(self, step: Stepping, read: Reading) -> None:
        self.step, self.read = step, read

    def own(self, layer: int, q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
        rows = self.step.rows
        q_step, k_step, v_step = (x[:, :, :rows].transpose(0, 2) for x in (q, k, v))
        first = self.step.own(layer, q_step, k_step, v_step, scale)
        more = self.read.own(layer, q[:, :, rows:], k[:, :, rows:], v[:, :, rows:], scale)
        return torch.cat([first.permute(2, 0, 1, 3), more.transpose(1, 2)], 1).transpose(1, 2)

    def memory(self, layer: int, q: Tensor, scale: float) -> Tensor:
        """See Caches: prompts of decoders with an encoder are not read in pieces."""
        raise NotImplementedError


def _attended(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    at: Tensor,
    scale: float,
    *,
    relative: Tensor | None = None,
    window: int = 0,
    cap: float = 0.0,
) -> Tensor:
    """Compute attention of queries [rows, heads, new, width] at the positions `at`, int64 [rows or 1, new],
    to all keys up to each. `relative`, `window` and `cap` are those of attention.attend.
    """
    back = at[:, :, None] - torch.arange(k.shape[2], device=k.device)
    hidden = (back < 0) | (back >= window) if window else back < 0
    mask = torch.zeros(hidden.shape, dtype=q.dtype, device=q.device).masked_fill(hidden, HIDDEN)[:, None]
    if relative is not None:
        mask = mask + F.embedding(back.clamp(0, len(relative) - 1), relative).permute(0, 3, 1, 2)
    if cap:  # in float32, capped before the mask is added
        shared = q.shape[1] // k.shape[1]
        k, v = k.repeat_interleave(shared, 1), v.repeat_interleave(shared, 1)
        scores = capped((q @ k.transpose(-1, -2)).float() * scale, cap) + mask
        return torch.softmax(scores, -1).to(v.dtype) @ v
    with attention():
        return F.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, scale=scale, enable_gqa=q.shape[1] != k.shape[1]
        )


def plain_attend_after(
    q: Tensor,
    fresh: tuple[Tensor, Tensor],
    keys: Tensor,
    values: Tensor,
    where: tuple[Tensor, Tensor, Tensor],
    scale: float,
    *,
    window: int = 0,
    cap: float = 0.0,
) -> Tensor:
    """Compute attention.attend_after in plain torch, for a CPU and for tests."""
    out, first = torch.zeros_like(q), 0
    for slot, start, count in zip(*(one.tolist() for one in where), strict=True):
        own, end = slice(first, first + count), start + count
        for kept, new in zip((keys, values), fresh, strict=True):
            kept[slot, :, start:end] = new[0, :, own]
        k, v = (kept[slot, None, :, :end] for kept in (keys, values))
        at = torch.arange(start, end, device=q.device)[None]
        out[:, :, own] = _attended(q[:, :, own], k, v, at, scale, window=window, cap=cap)
        first += count
    return out


def plain_attend(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    lengths: Tensor,
    scale: float,
    fresh: tuple[Tensor, Tensor] | None = None,
    relative: Tensor | None = None,
    *,
    window: int = 0,
    cap: float = 0.0,
) -> Tensor:
    """Compute attention.attend in plain torch, for devices without Triton's language and for its tests."""
    if fresh is not None:
        at = lengths.long()[:, None, None, None].expand(fresh[0].shape)
        keys.scatter_(2, at, fresh[0])
        values.scatter_(2, at, fresh[1])
        lengths = lengths + 1
    if not keys.is_cuda:  # what no row has reached need not be read
        reach = max(1, int(lengths.max()))
        keys, values = keys[:, :, :reach], values[:, :, :reach]
    at = (lengths.long() - 1)[:, None]
    return _attended(q, keys, values, at, scale, relative=relative, window=window, cap=cap)
