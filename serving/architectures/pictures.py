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


class Look(nn.Module):
    """Attention as in BERT: its output is added to the input and normalized. `width` is that of the queries,
    `seen` that of what they attend to.
    """

    def __init__(self, width: int, heads: int, seen: int, epsilon: float) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value = (
            nn.Linear(width, width),
            nn.Linear(seen, width),
            nn.Linear(seen, width),
        )
        self.mix, self.norm = nn.Linear(width, width), nn.LayerNorm(width, epsilon)

    def forward(self, hidden: Tensor, seen: Tensor) -> Tensor:
        """Attend from hidden [pictures, queries, width] to seen [pictures, n, its width]."""
        rows, n, width = hidden.shape
        parts = (self.query(hidden), self.key(seen), self.value(seen))
        q, k, v = (part.view(rows, -1, self.heads, width // self.heads).transpose(1, 2) for part in parts)
        found = functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(rows, n, width)
        return self.norm(self.mix(found) + hidden)


class QLayer(nn.Module):
    """Self-attention of the queries, in some layers attention to the picture, and a feed-forward."""

    def __init__(self, tower: Tower, seen: int, *, looks: bool) -> None:
        super().__init__()
        self.own = Look(tower.width, tower.heads, tower.width, tower.epsilon)
        self.cross = Look(tower.width, tower.heads, seen, tower.epsilon) if looks else None
        self.widen, self.narrow = nn.Linear(tower.width, tower.inner), nn.Linear(tower.inner, tower.width)
        self.norm = nn.LayerNorm(tower.width, tower.epsilon)

    def forward(self, hidden: Tensor, seen: Tensor) -> Tensor:
        hidden = self.own(hidden, hidden)
        hidden = hidden if self.cross is None else self.cross(hidden, seen)
        return self.norm(self.narrow(functional.gelu(self.widen(hidden))) + hidden)


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
            QLayer(tower, shape.tower.width, looks=number % former.every == 0)
            for number in range(tower.layers)
        )
        self.project = nn.Linear(tower.width, shape.width)

    def forward(self, pixels: Tensor) -> Tensor:
        seen = self.seen(pixels)
        hidden = self.norm(self.queries.expand(seen.shape[0], -1, -1))
        for layer in self.layers:
            hidden = layer(hidden, seen.to(hidden.dtype))
        return self.project(hidden.to(seen.dtype))

    def lower(self, dtype: torch.dtype) -> BlipPictures:
        """Convert the vision transformer's and the projection's weights to `dtype`."""
        self.seen.to(dtype)
        self.project.to(dtype)
        return self
