"""Linear layers of an encoder in 8-bit floats with four exponent bits (e4m3: Micikevicius et al. 2022), which
GPUs from compute capability 8.9 on multiply twice as fast as 16-bit ones.

Each row of an input and of a weight has its own scale, which maps its largest number to the format's maximum.
Attention, norms and sums stay in 16 bits. A CPU rounds in the same way and multiplies in float32, so that
word errors can be counted, and tests run, without such a GPU.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from serving.architectures.layers import FeedForward
from serving.architectures.transformer import Encoder

from .device import Device, NoGpu

HIGHEST = 448.0  # of the format
LEAST = 1e-30
NEEDED = (8, 9)
OUT = torch.bfloat16  # of a product on a GPU; not all of torch's kernels with scales of rows have float16


class Rows(NamedTuple):
    """Rows in 8-bit floats: `values` e4m3 [rows, width], `scales` float32 [rows, 1], and the original `shape`
    without its width.
    """

    values: Tensor
    scales: Tensor
    shape: torch.Size


class Float8Linear(nn.Module):
    """A linear layer with input and weight in 8-bit floats; in bfloat16 on a GPU."""

    def __init__(self, plain: nn.Linear) -> None:
        super().__init__()
        self.weight, scales = plain_rows8(plain.weight.detach())
        self.scales = scales.t().contiguous()
        self.bias = None if plain.bias is None else plain.bias.detach()
        if self.bias is not None and self.bias.is_cuda:
            self.bias = self.bias.to(OUT)

    def forward(self, x: Tensor | Rows) -> Tensor:
        """Map [..., inner] to [..., width]."""
        if not self.weight.is_cuda:
            assert isinstance(x, Tensor)
            values, scales = plain_rows8(x.reshape(-1, x.shape[-1]))
            rounded = values.float() * scales
            y = F.linear(rounded, self.weight.float() * self.scales.t(), self.bias)
            return y.view(*x.shape[:-1], -1)
        rows = x if isinstance(x, Rows) else _rows(x)
        y = torch._scaled_mm(
            rows.values,
            self.weight.t(),
            scale_a=rows.scales,
            scale_b=self.scales,
            bias=self.bias,
            out_dtype=OUT,
            use_fast_accum=True,
        )
        return y.view(*rows.shape, -1)


def plain_rows8(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return `x` [rows, width] in 8-bit floats, and float32 [rows, 1], the factor of each row."""
    x = x.float()
    scales = x.abs().amax(1, keepdim=True).clamp(min=LEAST) / HIGHEST
    return (x / scales).to(torch.float8_e4m3fn), scales


def _rows(x: Tensor, *, gelu: bool = False) -> Rows:
    from .kernels import rows8

    return Rows(*rows8(x, gelu=gelu), x.shape[:-1])


def _norm(plain: Any, x: Tensor) -> Rows:
    """Apply a fused norm and return 8-bit floats."""
    from .kernels import norm_rows8

    found = norm_rows8(x, plain.extra, plain.weight, plain.bias, plain.epsilon, rms=plain.rms)
    return Rows(*found, x.shape[:-1])


def _feed(feed: FeedForward, x: Rows) -> Rows:
    """Compute GELU, in its tanh form as in the fused layers, and quantize in one pass."""
    return _rows(feed.up(x), gelu=True)


def _added(x: Tensor, y: Tensor | Rows, last: Float8Linear) -> Tensor:
    """Add last(y) to x in place and return x."""
    return x.add_(last(y))


def to_float8(encoder: Encoder, device: Device) -> None:
    """Convert all of an encoder's linear layers; on a GPU call it after `fused.fuse`.

    Raises:
        NoGpu: the GPU has no such products, or computes in float32.
        ValueError: layers of another kind than Whisper's.
    """
    layer: Any
    for layer in encoder.layers:
        feed = layer.feed
        whole = isinstance(layer.own.out, nn.Linear) and isinstance(feed.down, nn.Linear)
        if not (layer.norm_first and feed.gate is None and feed.activation is F.gelu and whole):
            raise ValueError(f'family {encoder.shape.family} cannot have encoder_precision = "float8"')
    if device.gpu and torch.cuda.get_device_capability() < NEEDED:
        major, minor = torch.cuda.get_device_capability()
        raise NoGpu(
            f'encoder_precision = "float8" needs compute capability {NEEDED[0]}.{NEEDED[1]} (Ada, Hopper) or '
            f"newer; {torch.cuda.get_device_name()} has {major}.{minor}; leave encoder_precision out of the "
            "catalog and build again"
        )
    if device.gpu and not device.fuses:
        raise NoGpu(
            'encoder_precision = "float8" needs precision float16 or bfloat16; change one of them in the '
            "catalog and build again"
        )
    for layer in encoder.layers:
        layer.own.packed = Float8Linear(layer.own.packed)
        layer.own.out = Float8Linear(layer.own.out)
        layer.feed.up, layer.feed.down = Float8Linear(layer.feed.up), Float8Linear(layer.feed.down)
        if device.fuses:
            layer.own_norm.forward = partial(_norm, layer.own_norm)
            layer.feed_norm.forward = partial(_norm, layer.feed_norm)
            layer.feed.forward = partial(_feed, layer.feed)
            layer.added = _added
