"""A model's layers with fewer, larger kernels, for GPUs and half precision.

Where norms come first, nobody but norms reads the residual stream. So products are added to it in place,
without their biases, and each norm adds the biases of all products before it.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from serving.architectures.transformer import FeedForward, Layer, Model

from .kernels import norm, turn
from .sharding import SummedLinear


class FusedNorm(nn.Module):
    """A norm of its input and of biases that the input lacks, float32 [width]."""

    def __init__(self, plain: nn.Module, extra: Tensor) -> None:
        super().__init__()
        self.weight, self.bias = plain.weight, getattr(plain, "bias", None)
        self.epsilon, self.rms = float(plain.eps), isinstance(plain, nn.RMSNorm)
        self.extra = extra

    def forward(self, x: Tensor) -> Tensor:
        return norm(x, self.extra, self.weight, self.bias, self.epsilon, rms=self.rms)


def fuse(model: Model) -> None:
    """All layers of a model."""
    model.decoder.turn = turn  # type: ignore[method-assign]
    for part in (model.encoder, model.decoder):
        if part is None or part.norm is None:
            continue
        extra = torch.zeros(model.shape.width, device=part.norm.weight.device)
        for layer in part.layers:
            extra = _fuse_layer(layer, extra)
        part.norm = FusedNorm(part.norm, extra)


def _fuse_layer(layer: Layer, extra: Tensor) -> Tensor:
    """The biases that its successor's norms must add."""
    layer.added = added  # type: ignore[method-assign]
    layer.own_norm = FusedNorm(layer.own_norm, extra)
    extra = extra + _without_bias(layer.own.out)
    if layer.cross is not None:
        layer.cross_norm = FusedNorm(layer.cross_norm, extra)
        extra = extra + _without_bias(layer.cross.out)
    layer.feed_norm = FusedNorm(layer.feed_norm, extra)
    extra = extra + _without_bias(layer.feed.down)
    if layer.feed.gate is None and layer.feed.up.bias is not None and layer.feed.activation is not F.relu:
        layer.feed.forward = partial(_gelu, layer.feed)  # type: ignore[method-assign]
    return extra


def _without_bias(product: nn.Linear) -> Any:
    bias, product.bias = product.bias, None
    return 0.0 if bias is None else bias.detach().float()


def added(x: Tensor, y: Tensor, last: nn.Linear | SummedLinear) -> Tensor:
    """The sum of x and last(y), [batch, time, width], in the place of x."""
    if isinstance(last, SummedLinear):
        return x.add_(last.product(y))
    x.view(-1, x.shape[-1]).addmm_(y.reshape(-1, y.shape[-1]), last.weight.t())
    return x


def _gelu(feed: FeedForward, x: Tensor) -> Tensor:
    """The activation in the product's own kernel: GELU's tanh form, whose error is below float16's."""
    flat = x.view(-1, x.shape[-1])
    y = torch._addmm_activation(feed.up.bias, flat, feed.up.weight.t(), use_gelu=True)
    return y.view(*x.shape[:-1], -1)
