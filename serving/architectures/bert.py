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


class BertLayer(nn.Module):
    """Self-attention and feed-forward, each followed by its norm."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.heads = shape.heads
        self.query, self.key, self.value, self.mix = (nn.Linear(shape.width, shape.width) for _ in range(4))
        self.widen, self.narrow = nn.Linear(shape.width, shape.inner), nn.Linear(shape.inner, shape.width)
        self.attention_norm = nn.LayerNorm(shape.width, shape.epsilon)
        self.norm = nn.LayerNorm(shape.width, shape.epsilon)

    def forward(self, hidden: Tensor, bias: Tensor) -> Tensor:
        """Compute a layer from hidden states [texts, n, width] and a mask that is added to attention scores
        [texts, 1, 1, n].
        """
        texts, n, width = hidden.shape
        parts = (self.query(hidden), self.key(hidden), self.value(hidden))
        q, k, v = (part.view(texts, n, self.heads, width // self.heads).transpose(1, 2) for part in parts)
        seen = functional.scaled_dot_product_attention(q, k, v, attn_mask=bias)
        hidden = self.attention_norm(hidden + self.mix(seen.transpose(1, 2).reshape(texts, n, width)))
        return self.norm(hidden + self.narrow(functional.gelu(self.widen(hidden))))


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
        self.layers = nn.ModuleList(BertLayer(shape) for _ in range(shape.layers))

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        hidden = self.first_norm(self.words(ids) + self.places(torch.arange(ids.shape[1], device=ids.device)))
        bias = ((1.0 - mask.float()) * -1e9).to(hidden.dtype)[:, None, None, :]
        for layer in self.layers:
            hidden = layer(hidden, bias)
        if self.shape.first_token:
            pooled = hidden[:, 0]
        else:
            there = mask.float()[:, :, None]
            pooled = (hidden.float() * there).sum(1) / there.sum(1)
        return functional.normalize(pooled.float(), dim=-1) if self.shape.normalized else pooled.float()
