"""Encode pictures as rows of a prompt-embedding table for a language model that answers questions about them.

A pre-norm vision transformer over patches (Dosovitskiy et al. 2021). LLaVA takes CLIP's up to one of its
layers, and two linear layers with GELU between (Liu et al. 2023). BLIP-2 takes all of EVA's, to which query
tokens attend in a transformer of their own, the Q-Former (Li et al. 2023). Checked against transformers'
models of the same names (tests/unit/serving/test_pictures.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from .bert import BertLayer
from .clip import Patches, Tower
from .stored import Stored


@dataclass(frozen=True)
class Former:
    """Sizes of the Q-Former (like BERT, with GELU). Every `every`th layer attends to the picture, with
    `queries` query tokens.
    """

    tower: Tower
    every: int
    queries: int


@dataclass(frozen=True)
class Shape(Stored):
    """What differs between encoders (picture_architecture.json).

    Attributes:
        size: side of a picture in pixels, as `patch` is of its patches
        width: of the rows
        former: None for LLaVA
        tower: for LLaVA, ends with the layer whose output is used
        summarized: the summary token is a row, too
        bias: the two linear layers have biases
    """

    FILE: ClassVar[str] = "picture_architecture.json"

    tower: Tower
    size: int
    patch: int
    width: int
    summarized: bool = False
    bias: bool = True
    former: Former | None = None


def encoder(shape: Shape) -> LlavaPictures | BlipPictures:
    """Build the encoder of a shape, without weights."""
    return BlipPictures(shape, shape.former) if shape.former else LlavaPictures(shape)


class NormedPatches(Patches):
    """EVA's: a norm follows the last layer."""

    def __init__(self, tower: Tower, size: int, patch: int) -> None:
        super().__init__(tower, size, patch, clips=False)
        self.last_norm = nn.LayerNorm(tower.width, tower.epsilon)

    def forward(self, pixels: Tensor) -> Tensor:
        return self.last_norm(super().forward(pixels))


class LlavaPictures(nn.Module):
    """Map pixels [pictures, 3, size, size] to rows [pictures, patches, width]."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.seen = Patches(shape.tower, shape.size, shape.patch, clips=True)
        self.first = nn.Linear(shape.tower.width, shape.width, bias=shape.bias)
        self.second = nn.Linear(shape.width, shape.width, bias=shape.bias)

    def forward(self, pixels: Tensor) -> Tensor:
        hidden = self.seen(pixels)
        hidden = hidden if self.shape.summarized else hidden[:, 1:]
        return self.second(functional.gelu(self.first(hidden)))

    def lower(self, dtype: torch.dtype) -> LlavaPictures:
        """Convert all weights to `dtype`."""
        return self.to(dtype)


class BlipPictures(nn.Module):
    """Map pixels [pictures, 3, size, size] to rows [pictures, queries, width]. Queries and Q-Former stay in
    float32 whatever the precision of the rest, as in transformers (modeling_blip_2.py,
    `_keep_in_fp32_modules`).
    """

    def __init__(self, shape: Shape, former: Former) -> None:
        super().__init__()
        self.shape, tower = shape, former.tower
        self.seen = NormedPatches(shape.tower, shape.size, shape.patch)
        self.queries = nn.Parameter(torch.empty(1, former.queries, tower.width))
        self.norm = nn.LayerNorm(tower.width, tower.epsilon)
        self.layers = nn.ModuleList(
            BertLayer(
                tower.width,
                tower.heads,
                tower.inner,
                tower.epsilon,
                0 if number % former.every else shape.tower.width,
            )
            for number in range(tower.layers)
        )
        self.project = nn.Linear(tower.width, shape.width)

    def forward(self, pixels: Tensor) -> Tensor:
        seen = self.seen(pixels)
        hidden = self.norm(self.queries.expand(seen.shape[0], -1, -1))
        for layer in self.layers:
            hidden = layer(hidden, seen=seen.to(hidden.dtype))
        return self.project(hidden.to(seen.dtype))

    def lower(self, dtype: torch.dtype) -> BlipPictures:
        """Convert the vision transformer's and the projection's weights to `dtype`."""
        self.seen.to(dtype)
        self.project.to(dtype)
        return self
