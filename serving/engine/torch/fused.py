"""Fuse a model's layers into fewer, larger kernels, for GPUs and half precision.

Products are added to the residual stream in place without their biases, which the norms add. Where norms come
first, only norms read that stream, so each adds the biases of all products before it; where they come last,
that of the one product before it. An activation and its gate are one kernel after one product. A product of
one row, as in a step of a single text, is a kernel of its own, with its activation and gate.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from serving.architectures.layers import ACTIVATIONS, FeedForward, Layer, joined
from serving.architectures.transformer import Transformer

from .kernels import alone, gate, norm, product, turn
from .sharding import SummedLinear

GELU = (ACTIVATIONS["gelu"], ACTIVATIONS["gelu_new"])


class FusedNorm(nn.Module):
    """A norm of its input and of biases, float32 [width], that the input lacks."""

    def __init__(self, plain: nn.Module, extra: Any) -> None:
        super().__init__()
        self.weight, self.bias = plain.weight, getattr(plain, "bias", None)
        self.epsilon, self.rms = float(plain.eps), isinstance(plain, nn.RMSNorm)
        self.extra = torch.zeros_like(plain.weight, dtype=torch.float32) + extra

    def forward(self, x: Tensor) -> Tensor:
        return norm(x, self.extra, self.weight, self.bias, self.epsilon, rms=self.rms)


def fuse(model: Transformer) -> None:
    """Fuse all layers of a model."""
    model.decoder.turn = turn  # type: ignore[method-assign]
    for part in (model.encoder, model.decoder):
        if part is None:
            continue
        extra: Any = 0.0
        for layer in part.layers:
            _fuse_feed(layer.feed)
            for one in (layer.own.packed, layer.cross and layer.cross.q):
                if one is not None:
                    one.forward = partial(linear, one)
            if model.shape.norm_first:
                extra = _fuse_first(layer, extra)
            else:
                _fuse_last(layer)
        if part.norm is not None:
            part.norm = FusedNorm(part.norm, extra)


def _fuse_first(layer: Layer, extra: Any) -> Any:
    """Fuse a layer whose norms come first, and return the biases that the next layer's norms must add."""
    layer.added = added  # type: ignore[method-assign]
    layer.own_norm = FusedNorm(layer.own_norm, extra)
    extra = extra + _without_bias(layer.own.out)
    if layer.cross is not None:
        layer.cross_norm = FusedNorm(layer.cross_norm, extra)
        extra = extra + _without_bias(layer.cross.out)
    layer.feed_norm = FusedNorm(layer.feed_norm, extra)
    return extra + _without_bias(layer.feed.down)


def _fuse_last(layer: Layer) -> None:
    layer.add = normed  # type: ignore[method-assign]
    layer.own_norm = FusedNorm(layer.own_norm, _without_bias(layer.own.out))
    if layer.cross is not None:
        layer.cross_norm = FusedNorm(layer.cross_norm, _without_bias(layer.cross.out))
    layer.feed_norm = FusedNorm(layer.feed_norm, _without_bias(layer.feed.down))


def _fuse_feed(feed: FeedForward) -> None:
    silu = feed.activation is F.silu
    if feed.gate is not None and (silu or feed.activation is ACTIVATIONS["gelu_new"]):
        feed.up, feed.gate = joined([feed.up, feed.gate]), None
        feed.forward = partial(_gated, feed.up, silu=silu)  # type: ignore[method-assign]
    elif feed.gate is None and feed.up.bias is not None and feed.activation in GELU:
        feed.forward = partial(_gelu, feed)  # type: ignore[method-assign]


def _gated(both: nn.Linear, x: Tensor, *, silu: bool) -> Tensor:
    if alone(x, both.weight):
        return product(x, both.weight, both.bias, gated="silu" if silu else "gelu")
    return gate(F.linear(x, both.weight, both.bias), silu=silu)


def _without_bias(product: nn.Linear) -> Any:
    if getattr(product, "after", None) is not None:
        return 0.0  # its norm reads the bias
    bias, product.bias = product.bias, None
    return 0.0 if bias is None else bias.detach().float()


def linear(layer: nn.Linear, x: Tensor) -> Tensor:
    """Compute layer(x)."""
    made = product if alone(x, layer.weight) else F.linear
    return made(x, layer.weight, layer.bias)


def added(x: Tensor, y: Tensor, last: nn.Linear | SummedLinear) -> Tensor:
    """Add last(y) to x [batch, time, width] in place and return x."""
    if getattr(last, "after", None) is not None:
        return x.add_(last(y))
    if isinstance(last, SummedLinear):
        return x.add_(last.product(y))
    if alone(y, last.weight):
        return product(y, last.weight, onto=x)
    x.view(-1, x.shape[-1]).addmm_(y.reshape(-1, y.shape[-1]), last.weight.t())
    return x


def normed(x: Tensor, norm: nn.Module, part: Callable[[Tensor], Tensor], last: nn.Linear) -> Tensor:
    """Compute `Layer.add` where norms come last."""
    found: Tensor = norm(added(x, part(x), last))
    return found


def _gelu(feed: FeedForward, x: Tensor) -> Tensor:
    """Compute GELU in the product's own kernel, in its tanh form, whose error is below float16's."""
    if alone(x, feed.up.weight):
        return product(x, feed.up.weight, feed.up.bias, gelu=True)
    flat = x.view(-1, x.shape[-1])
    y = torch._addmm_activation(feed.up.bias, flat, feed.up.weight.t(), use_gelu=True)
    return y.view(*x.shape[:-1], -1)
