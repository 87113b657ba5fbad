"""CLIP: embed pictures and texts in one vector space.

A vision transformer and a causal text transformer, both pre-norm, each with a linear projection to the common
width and scaled to length 1 (Radford et al. 2021, https://arxiv.org/abs/2103.00020). Pooling and activation
are as in transformers' modeling_clip.py.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from .layers import merge, split
from .stored import Stored

LEGACY_END = 2  # a config with this end id says nothing: the end of a text is its highest id


@dataclass(frozen=True)
class Tower:
    """Sizes of one transformer. `activation` is a key of ACTIVATIONS."""

    width: int
    layers: int
    heads: int
    inner: int
    epsilon: float = 1e-5
    activation: str = "quick_gelu"


@dataclass(frozen=True)
class Shape(Stored):
    """Sizes of both transformers.

    Attributes:
        size: side of a picture in pixels, as `patch` is of its patches
        positions: tokens that the text transformer was trained for
        end_id: id whose first occurrence becomes the text's vector (see LEGACY_END)
        dimensions: size of a vector
    """

    picture: Tower
    size: int
    patch: int
    text: Tower
    vocabulary: int
    positions: int
    end_id: int
    dimensions: int


def quick_gelu(hidden: Tensor) -> Tensor:
    """Compute OpenAI's approximation of GELU (https://github.com/hendrycks/GELUs)."""
    return hidden * torch.sigmoid(1.702 * hidden)


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"quick_gelu": quick_gelu, "gelu": functional.gelu}


class ClipLayer(nn.Module):
    """A norm and self-attention, then a norm and feed-forward."""

    def __init__(self, tower: Tower, *, causal: bool) -> None:
        super().__init__()
        self.heads, self.causal, self.activation = tower.heads, causal, ACTIVATIONS[tower.activation]
        self.attention_norm = nn.LayerNorm(tower.width, tower.epsilon)
        self.query, self.key, self.value, self.mix = (nn.Linear(tower.width, tower.width) for _ in range(4))
        self.inner_norm = nn.LayerNorm(tower.width, tower.epsilon)
        self.widen, self.narrow = nn.Linear(tower.width, tower.inner), nn.Linear(tower.inner, tower.width)

    def forward(self, hidden: Tensor) -> Tensor:
        """Compute a layer from hidden states [rows, n, width]."""
        normed = self.attention_norm(hidden)
        parts = (self.query(normed), self.key(normed), self.value(normed))
        q, k, v = (split(part, self.heads) for part in parts)
        seen = functional.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        hidden = hidden + self.mix(merge(seen))
        return hidden + self.narrow(self.activation(self.widen(self.inner_norm(hidden))))


class Patches(nn.Module):
    """Map normalized pixels [pictures, 3, size, size] to hidden states [pictures, 1 + patches, width], the
    first of which is a summary. With `clips` it has CLIP's first norm and no bias of the patches.
    """

    def __init__(self, tower: Tower, size: int, patch: int, *, clips: bool) -> None:
        super().__init__()
        self.summary = nn.Parameter(torch.empty(tower.width).normal_(std=tower.width**-0.5))
        self.patches = nn.Conv2d(3, tower.width, patch, patch, bias=not clips)
        self.places = nn.Embedding((size // patch) ** 2 + 1, tower.width)
        self.first_norm = nn.LayerNorm(tower.width, tower.epsilon) if clips else None
        self.layers = nn.ModuleList(ClipLayer(tower, causal=False) for _ in range(tower.layers))

    def forward(self, pixels: Tensor) -> Tensor:
        patches = self.patches(pixels).flatten(2).transpose(1, 2)
        first = self.summary.expand(patches.shape[0], 1, -1)
        hidden = torch.cat([first, patches], 1) + self.places.weight
        hidden = hidden if self.first_norm is None else self.first_norm(hidden)
        for layer in self.layers:
            hidden = layer(hidden)
        return hidden


class PictureEncoder(Patches):
    """Map normalized pixels [pictures, 3, size, size] to float32 [pictures, dimensions] of length 1."""

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape.picture, shape.size, shape.patch, clips=True)
        self.last_norm = nn.LayerNorm(shape.picture.width, shape.picture.epsilon)
        self.project = nn.Linear(shape.picture.width, shape.dimensions, bias=False)

    def forward(self, pixels: Tensor) -> Tensor:
        summary = super().forward(pixels)[:, 0]
        return functional.normalize(self.project(self.last_norm(summary)).float(), dim=-1)


class TextEncoder(nn.Module):
    """Map token ids [texts, n] and their mask [texts, n] (1: token, 0: padding after them) to float32 [texts,
    dimensions] of length 1.
    """

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        tower, self.end_id = shape.text, shape.end_id
        self.words = nn.Embedding(shape.vocabulary, tower.width)
        self.places = nn.Embedding(shape.positions, tower.width)
        self.layers = nn.ModuleList(ClipLayer(tower, causal=True) for _ in range(tower.layers))
        self.last_norm = nn.LayerNorm(tower.width, tower.epsilon)
        self.project = nn.Linear(tower.width, shape.dimensions, bias=False)

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        """See the class. Tokens see only those before them, so the mask keeps padding from being the end of a
        text, and nothing else.
        """
        places = torch.arange(ids.shape[1], device=ids.device)
        hidden = self.words(ids) + self.places(places)
        for layer in self.layers:
            hidden = layer(hidden)
        at = self._ends(ids * mask, places)
        pooled = hidden[torch.arange(ids.shape[0], device=ids.device), at]
        return functional.normalize(self.project(self.last_norm(pooled)).float(), dim=-1)

    def _ends(self, ids: Tensor, places: Tensor) -> Tensor:
        """Return the position of the first end token, or of the highest id; 0 where there is no end."""
        rank = ids if self.end_id == LEGACY_END else (ids == self.end_id).long()
        return (rank * ids.shape[1] + places.flip(0)).argmax(1)  # no two places are equal


class Clip(nn.Module):
    """Both encoders, and the logarithm of the scale of their products in training."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.picture, self.text = PictureEncoder(shape), TextEncoder(shape)
        self.scale = nn.Parameter(torch.tensor(2.6592))
