"""Quantize a picture encoder to INT8 with explicit QuantizeLinear and DequantizeLinear nodes. Ranges are the
largest values seen on pictures.

The patches, the projection and the second layer of each feed-forward stay in floating point: quantizing them,
too, costs more of the vectors than CLOSE allows (docs/tensorrt-llm/encoders.md has the figures).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from conch.bundle import PictureFacts
from serving.errors import BadRequest
from serving.vision.decoding import decoded
from serving.vision.preprocessing import pixels

from ...pictures import Unsupported

KEPT = ("narrow", "project")
SUFFIXES = {".png", ".jpg", ".jpeg", ".webp", ".bmp"}
LEAST = 16  # pictures: half of them give the ranges, the others compare
CLOSE = 0.999  # smallest cosine with the float32 encoder
LARGEST = 127
SMALLEST = torch.finfo(torch.float16).tiny  # step: a smaller one would lose bits in float16, or be 0
AT_ONCE = 16  # pictures


class Rounded(torch.autograd.Function):
    """Round values to steps of `scale`, which is one number, or one for each entry of the second axis. `zero`
    (int8) is what zero becomes; it gives the type in the graph.
    """

    @staticmethod
    def forward(ctx: Any, values: Tensor, scale: Tensor, zero: Tensor) -> Tensor:
        """Compute what the two nodes compute."""
        return torch.clamp(torch.round(values / scale), -LARGEST - 1, LARGEST) * scale

    @staticmethod
    def symbolic(g: Any, values: Any, scale: Any, zero: Any) -> Any:
        """Write the two nodes."""
        options = {"axis_i": 1} if scale.type().sizes() else {}
        steps = g.op("QuantizeLinear", values, scale, zero, **options)
        return g.op("DequantizeLinear", steps, scale, zero, **options).setType(values.type())


class Quantized(nn.Module):
    """A linear layer whose inputs and weights are rounded; `largest` is the largest absolute input."""

    def __init__(self, layer: nn.Linear, largest: float) -> None:
        super().__init__()
        weight = layer.weight.detach().T.contiguous()
        self.weight, self.bias = nn.Parameter(weight), layer.bias
        self.register_buffer("steps", torch.tensor(max(largest / LARGEST, SMALLEST)))
        self.register_buffer("weight_steps", (weight.abs().amax(0) / LARGEST).clamp_min(SMALLEST))
        self.register_buffer("zero", torch.zeros((), dtype=torch.int8))
        self.register_buffer("weight_zero", torch.zeros(weight.shape[1], dtype=torch.int8))

    def forward(self, values: Tensor) -> Tensor:
        """Map [..., inputs] to [..., outputs]."""
        weight = Rounded.apply(self.weight, self.weight_steps, self.weight_zero)
        product = Rounded.apply(values, self.steps, self.zero) @ weight
        return product if self.bias is None else product + self.bias


def quantize(encoder: nn.Module, folder: Path, facts: PictureFacts) -> None:
    """Replace the encoder's linear layers. Half of a folder's pictures measure ranges, the others compare.

    Raises:
        Unsupported: too few pictures, or vectors that differ from the float32 encoder's by more than CLOSE.
    """
    given = read(folder, facts)
    plain = vectors(encoder, given[1::2])
    largest = ranges(encoder, given[::2])
    for name, most in largest.items():
        parent, _, own = name.rpartition(".")
        owner = encoder.get_submodule(parent)
        setattr(owner, own, Quantized(encoder.get_submodule(name), most))
    least = float(functional.cosine_similarity(plain, vectors(encoder, given[1::2])).min())
    if not least >= CLOSE:  # nor where it is not a number
        raise Unsupported(
            f"compress=int8: vectors of {folder} have a cosine of {least:.5f} with float32's, less than "
            f"{CLOSE}; use compress=none, or calibrate on pictures like those that will be sent"
        )
    print(f"compress=int8: smallest cosine with float32 {least:.5f}, {len(given) // 2} pictures")


def read(folder: Path, facts: PictureFacts) -> Tensor:
    """Read the pictures of a folder: float32 [pictures, 3, size, size].

    Raises:
        Unsupported: there are fewer than LEAST, or one cannot be read.
    """
    files = sorted(path for path in folder.rglob("*") if path.suffix.lower() in SUFFIXES)
    if len(files) < LEAST:
        raise Unsupported(
            f"compress=int8 needs {LEAST} pictures or more like those that will be sent, {folder} has "
            f"{len(files)}; name a folder with calibration in the catalog"
        )
    make = partial(pixels, facts=facts)
    found = []
    for path in files:
        try:
            found.append(torch.from_numpy(decoded(path.read_bytes(), make)))
        except BadRequest as error:
            raise Unsupported(f"compress=int8: {path} {error}") from error
    return torch.stack(found)


def vectors(encoder: nn.Module, given: Tensor) -> Tensor:
    """Encode pictures, few at once, since a folder may have many."""
    return torch.cat([encoder(part) for part in given.split(AT_ONCE)])


def ranges(encoder: nn.Module, given: Tensor) -> dict[str, float]:
    """Return the largest absolute input of each linear layer to quantize, by its name."""
    found: dict[str, float] = {}

    def keep(name: str, _: nn.Module, inputs: Sequence[Tensor]) -> None:
        found[name] = max(found.get(name, 0.0), float(inputs[0].abs().max()))

    hooks: list[Callable[[], None]] = []
    for name, layer in encoder.named_modules():
        if isinstance(layer, nn.Linear) and name.rpartition(".")[2] not in KEPT:
            hooks.append(layer.register_forward_pre_hook(partial(keep, name)).remove)
    vectors(encoder, given)
    for remove in hooks:
        remove()
    return found
