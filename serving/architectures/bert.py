"""BERT with pooling, as sentence-transformers publishes embedding models: MiniLM, bge, e5, gte and others.

Post-norm encoder layers (Devlin et al. 2018, https://arxiv.org/abs/1810.04805), then the mean of all tokens
or the first token, then length 1 (https://github.com/huggingface/sentence-transformers, models/Pooling.py and
Normalize.py).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from .layers import merge, split
from .stored import Stored


@dataclass(frozen=True)
class Shape(Stored):
    """Sizes.

    Attributes:
        positions: tokens that the model was trained for
        first_token: pool the first token instead of the mean
        normalized: scale vectors to length 1
    """

    vocabulary: int
    width: int
    layers: int
    heads: int
    inner: int
    positions: int
    epsilon: float = 1e-12
    first_token: bool = False
    normalized: bool = True


class BertAttention(nn.Module):
    """Attention whose output is added to the input and normalized. `width` is that of the queries, `seen`
    that of what they attend to.
    """

    def __init__(self, width: int, heads: int, seen: int, epsilon: float) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.mix = nn.Linear(width, width), nn.Linear(width, width)
        self.key, self.value = nn.Linear(seen, width), nn.Linear(seen, width)
        self.norm = nn.LayerNorm(width, epsilon)

    def forward(self, hidden: Tensor, seen: Tensor, mask: Tensor | None = None) -> Tensor:
        """Attend from hidden [rows, n, width] to seen [rows, m, its width]; `mask` [rows, 1, 1, m] is added
        to attention scores.
        """
        parts = (self.query(hidden), self.key(seen), self.value(seen))
        q, k, v = (split(part, self.heads) for part in parts)
        found = merge(functional.scaled_dot_product_attention(q, k, v, attn_mask=mask))
        return self.norm(self.mix(found) + hidden)


class BertLayer(nn.Module):
    """Self-attention, attention to something else if `seen` is its width, and a feed-forward with GELU, each
    followed by its norm.
    """

    def __init__(self, width: int, heads: int, inner: int, epsilon: float, seen: int = 0) -> None:
        super().__init__()
        self.own = BertAttention(width, heads, width, epsilon)
        self.cross = BertAttention(width, heads, seen, epsilon) if seen else None
        self.widen, self.narrow = nn.Linear(width, inner), nn.Linear(inner, width)
        self.norm = nn.LayerNorm(width, epsilon)

    def forward(self, hidden: Tensor, mask: Tensor | None = None, seen: Tensor | None = None) -> Tensor:
        hidden = self.own(hidden, hidden, mask)
        hidden = hidden if self.cross is None else self.cross(hidden, seen)
        return self.norm(self.narrow(functional.gelu(self.widen(hidden))) + hidden)


class TextEmbedder(nn.Module):
    """Map token ids [texts, n] and their mask [texts, n] (1: token, 0: padding) to float32 [texts, width]."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.words = nn.Embedding(shape.vocabulary, shape.width)
        # Learned positions; the vector of BERT's first token type, which all tokens of one text have, is
        # added to each of them.
        self.places = nn.Embedding(shape.positions, shape.width)
        self.first_norm = nn.LayerNorm(shape.width, shape.epsilon)
        self.layers = nn.ModuleList(
            BertLayer(shape.width, shape.heads, shape.inner, shape.epsilon) for _ in range(shape.layers)
        )

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        hidden = self.first_norm(self.words(ids) + self.places(torch.arange(ids.shape[1], device=ids.device)))
        hides = ((1.0 - mask.float()) * -1e9).to(hidden.dtype)[:, None, None, :]
        for layer in self.layers:
            hidden = layer(hidden, hides)
        if self.shape.first_token:
            pooled = hidden[:, 0]
        else:
            there = mask.float()[:, :, None]
            pooled = (hidden.float() * there).sum(1) / there.sum(1)
        return functional.normalize(pooled.float(), dim=-1) if self.shape.normalized else pooled.float()
