"""Layers of the transformer: linear ones, attention, feed-forward."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .shape import Shape

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_new": lambda x: F.gelu(x, approximate="tanh"),
    "relu": F.relu,
    "silu": F.silu,
}


class _Loaded:
    """Skips random initialisation, which takes seconds, since weights are always loaded."""

    def reset_parameters(self) -> None:
        """Do nothing."""


class Linear(_Loaded, nn.Linear):
    """See _Loaded."""


class NormedLinear(Linear):
    """A linear layer followed by an RMS norm."""

    def __init__(self, inner: int, shape: Shape) -> None:
        super().__init__(inner, shape.width, bias=shape.bias)
        self.after = nn.RMSNorm(shape.width, eps=shape.epsilon)

    def forward(self, x: Tensor) -> Tensor:
        """Map [..., inner] to [..., width]."""
        normed: Tensor = self.after(super().forward(x))
        return normed


class TokenEmbedding(_Loaded, nn.Embedding):
    """See _Loaded."""


class Conv1d(_Loaded, nn.Conv1d):
    """See _Loaded."""


def split(x: Tensor, heads: int) -> Tensor:
    """Reshape [batch, time, width] to [batch, heads, time, width / heads]."""
    return x.view(x.shape[0], x.shape[1], heads, -1).transpose(1, 2)


def merge(x: Tensor) -> Tensor:
    """Reshape [batch, heads, time, head width] to [batch, time, width], the inverse of split."""
    return x.transpose(1, 2).reshape(x.shape[0], x.shape[2], -1)


def turned(x: Tensor, turns: Tensor) -> Tensor:
    """Rotate `x` [batch, heads, time, head width], whose halves are coordinates of points, by the angles in
    `turns` [batch, 1, time, head width]: cosines, then sines (transformers' `rotate_half`).
    """
    (cosines, sines), (first, second) = turns.chunk(2, -1), x.chunk(2, -1)
    return torch.cat([first * cosines - second * sines, second * cosines + first * sines], -1)


def capped(x: Tensor, cap: float) -> Tensor:
    """Return cap * tanh(x / cap), or `x` where `cap` is 0."""
    return torch.tanh(x / cap) * cap if cap else x


def _last(shape: Shape, inner: int) -> Linear:
    """Make the linear layer that a part of a layer ends with."""
    return NormedLinear(inner, shape) if shape.post_norms else Linear(inner, shape.width, bias=shape.bias)


def norm_of(shape: Shape) -> nn.Module:
    """Make the norm that a shape has."""
    kind = nn.RMSNorm if shape.norm == "rms" else nn.LayerNorm
    return kind(shape.width, eps=shape.epsilon)


class Attention(nn.Module):
    """Projections of one attention. `packed` makes one product of three; `key_heads` is the number of key and
    value heads, if not `heads`.
    """

    def __init__(self, shape: Shape, heads: int, key_heads: int = 0) -> None:
        super().__init__()
        inner, kept = heads * shape.head_width, (key_heads or heads) * shape.head_width
        self.heads, self.key_heads = heads, key_heads or heads
        bias = shape.bias or shape.qkv_bias
        self.q = Linear(shape.width, inner, bias=bias)
        self.k = Linear(shape.width, kept, bias=bias and shape.key_bias)
        self.v = Linear(shape.width, kept, bias=bias)
        self.out = _last(shape, inner)
        self.packed: nn.Linear | None = None
        self.epsilon = shape.epsilon
        self.q_norm, self.k_norm = (
            nn.Parameter(torch.ones(shape.head_width)) if shape.head_norm else None for _ in range(2)
        )

    def pack(self) -> None:
        """Join the weights of queries, keys and values."""
        self.packed = joined([self.q, self.k, self.v])
        del self.q, self.k, self.v

    def query(self, x: Tensor) -> Tensor:
        """Return queries [batch, heads, time, head width]."""
        return split(self.q(x), self.heads)

    def all(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys and values; shapes as in `query`."""
        if self.packed is None:
            q, k, v = self.query(x), split(self.k(x), self.key_heads), split(self.v(x), self.key_heads)
            if self.q_norm is not None:
                q, k = self._unit(q) * self.q_norm, self._unit(k) * self.k_norm
            return q, k, v
        parts = split(self.packed(x), self.heads + 2 * self.key_heads)
        if self.q_norm is None:
            q, k, v = parts.split([self.heads, self.key_heads, self.key_heads], 1)
            return q, k, v
        both, v = parts.split([self.heads + self.key_heads, self.key_heads], 1)
        assert self.k_norm is not None
        own = [self.q_norm.expand(self.heads, -1), self.k_norm.expand(self.key_heads, -1)]
        q, k = (self._unit(both) * torch.cat(own)[:, None]).split([self.heads, self.key_heads], 1)
        return q, k, v

    def _unit(self, x: Tensor) -> Tensor:
        """Scale `x` [batch, heads, time, head width] so that each vector's root mean square is 1."""
        return F.rms_norm(x, x.shape[-1:], None, self.epsilon)


def joined(parts: Sequence[nn.Linear]) -> nn.Linear:
    """Join several linear layers of the same input into one; parts without a bias get zeros."""
    weight = torch.cat([part.weight for part in parts])
    whole = Linear(weight.shape[1], weight.shape[0], bias=any(part.bias is not None for part in parts))
    whole.weight = nn.Parameter(weight, requires_grad=False)
    if whole.bias is not None:
        zero = [part.weight.new_zeros(part.weight.shape[0]) for part in parts]
        biases = [
            part.bias if part.bias is not None else none for part, none in zip(parts, zero, strict=True)
        ]
        whole.bias = nn.Parameter(torch.cat(biases), requires_grad=False)
    return whole


class FeedForward(nn.Module):
    """Two linear layers with an activation between, optionally gated by a third (Shazeer 2020)."""

    def __init__(self, shape: Shape, inner: int) -> None:
        super().__init__()
        self.up = Linear(shape.width, inner, bias=shape.bias)
        self.gate = Linear(shape.width, inner, bias=shape.bias) if shape.gated else None
        self.down = _last(shape, inner)
        self.activation = ACTIVATIONS[shape.activation]

    def forward(self, x: Tensor) -> Tensor:
        """Return the input of `down`."""
        y = self.activation(self.up(x))
        return y if self.gate is None else y * self.gate(x)


class Layer(nn.Module):
    """Self-attention, cross-attention if there is an encoder, and feed-forward, each with a residual
    connection.
    """

    def __init__(self, shape: Shape, heads: int, inner: int, *, memory: bool, key_heads: int = 0) -> None:
        super().__init__()
        self.norm_first = shape.norm_first
        self.own, self.own_norm = Attention(shape, heads, key_heads), norm_of(shape)
        self.cross = Attention(shape, heads) if memory else None
        self.cross_norm = norm_of(shape) if memory else None
        self.feed, self.feed_norm = FeedForward(shape, inner), norm_of(shape)

    def add(self, x: Tensor, norm: nn.Module, part: Callable[[Tensor], Tensor], last: nn.Linear) -> Tensor:
        """Add to `x` [batch, time, width] the output of a part, whose last linear layer is `last`, with its
        norm.
        """
        if not self.norm_first:
            return norm(x + last(part(x)))
        return self.added(x, part(norm(x)), last)

    def added(self, x: Tensor, y: Tensor, last: nn.Linear) -> Tensor:
        """Return x + last(y), [batch, time, width]."""
        return x + last(y)
