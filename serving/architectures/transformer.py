"""One transformer for every family: a Shape describes the differences, and the caller provides the caches.

Vaswani et al. 2017; Whisper: Radford et al. 2022; T5: Raffel et al. 2020; BART: Lewis et al. 2020; GPT-2:
Radford et al. 2019; LLaMA: Touvron et al. 2023, and decoders that differ from it in details; OPT: Zhang et
al. 2022. Checked against transformers' models of the same names (tests/unit/serving).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .layers import Conv1d, Layer, Linear, TokenEmbedding, capped, joined, merge, norm_of, split, turned
from .shape import Shape


class Caches(Protocol):
    """Keys and values of earlier ids, wherever they are stored."""

    def own(self, layer: int, q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
        """Store `k` and `v` [batch, key heads, new, head width] and attend with `q` [batch, heads, new, head
        width] to everything stored for the layer. Returns the shape of `q`.
        """

    def memory(self, layer: int, q: Tensor, scale: float) -> Tensor:
        """Attend to the encoder output for the layer; shapes as in `own`."""


class Encoder(nn.Module):
    """Map features [batch, mels, frames] or ids [batch, n] to keys and values for every decoder layer."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        if shape.mels:
            self.conv1 = Conv1d(shape.mels, shape.width, 3, padding=1)
            self.conv2 = Conv1d(shape.width, shape.width, 3, stride=2, padding=1)
        else:
            self.ids = TokenEmbedding(shape.vocabulary, shape.width)
        self.positions = TokenEmbedding(shape.sources, shape.width) if shape.sources else None
        distances = 2 * shape.relative + 1
        self.relative = TokenEmbedding(distances, shape.encoder_heads) if shape.relative else None
        self.embedding_norm = norm_of(shape) if shape.embedding_norm else None
        layers = (
            Layer(shape, shape.encoder_heads, shape.encoder_inner, memory=False)
            for _ in range(shape.encoder_layers)
        )
        self.layers = nn.ModuleList(layers)
        self.norm = norm_of(shape) if shape.norm_first else None
        # Keys and values of each decoder layer in turn, made here, once for each request.
        inner = shape.decoder_heads * shape.head_width
        self.keys, self.values = (
            nn.ModuleList(Linear(shape.width, inner, bias=bias) for _ in range(shape.decoder_layers))
            for bias in (shape.bias and shape.key_bias, shape.bias)
        )
        self.packed: nn.Linear | None = None

    def pack(self) -> None:
        """Join linear layers that have the same input."""
        for layer in self.layers:
            layer.own.pack()
        pairs = zip(self.keys, self.values, strict=True)
        self.packed = joined([part for pair in pairs for part in pair])
        del self.keys, self.values

    def hidden(self, source: Tensor, seen: Tensor | None = None) -> Tensor:
        """Return hidden states [batch, length, width]. `seen`, bool [batch, length], marks ids that are not
        padding.
        """
        x = self.through(self.layers, self.embedded(source), self._mask(source, seen))
        return x if self.norm is None else self.norm(x)

    def through(self, layers: Iterable[nn.Module], x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Run some of its layers; they may add to `x` [batch, length, width] in place."""
        scale = self.shape.scale or self.shape.head_width**-0.5
        for layer in layers:

            def attend(y: Tensor, layer: Any = layer) -> Tensor:
                q, k, v = layer.own.all(y)
                return merge(F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale))

            x = layer.add(x, layer.own_norm, attend, layer.own.out)
            x = layer.add(x, layer.feed_norm, layer.feed, layer.feed.down)
        return x

    def forward(self, source: Tensor) -> tuple[Tensor, ...]:
        """Return keys and values [batch, heads, length, head width], layer by layer."""
        x = self.hidden(source)
        pairs = zip(self.keys, self.values, strict=True)
        return tuple(split(part(x), self.shape.decoder_heads) for pair in pairs for part in pair)

    def memory(self, source: Tensor, seen: Tensor | None = None, out: Tensor | None = None) -> Tensor:
        """Return the encoder output as one tensor [batch, 2 * layers, heads, length, head width], optionally
        in `out`; call `pack` first.
        """
        return self.remembered(self.hidden(source, seen), out)

    def remembered(self, x: Tensor, out: Tensor | None = None) -> Tensor:
        """Return what `memory` returns, from hidden states `x` [batch, length, width]."""
        assert self.packed is not None
        shape = self.shape
        parts = self.packed(x).view(*x.shape[:2], 2 * shape.decoder_layers, shape.decoder_heads, -1)
        parts = parts.permute(0, 2, 3, 1, 4)
        return parts.contiguous() if out is None else out.copy_(parts)

    def embedded(self, source: Tensor) -> Tensor:
        """Return the first layer's input, [batch, length, width]."""
        shape = self.shape
        if shape.mels:
            x = F.gelu(self.conv2(F.gelu(self.conv1(source)))).permute(0, 2, 1).contiguous()
        else:
            x = self.ids(source)
            x = x if shape.embedding_scale == 1.0 else x * shape.embedding_scale
        if self.positions is not None:
            x = x + self.positions.weight[shape.offset : x.shape[1] + shape.offset]
        return x if self.embedding_norm is None else self.embedding_norm(x)

    def _mask(self, source: Tensor, seen: Tensor | None) -> Tensor | None:
        """Return what is added to scores: [1 or batch, heads or 1, length, length]."""
        mask = None
        if self.relative is not None:
            places = torch.arange(source.shape[-1], device=source.device)
            back = (places[None] - places[:, None]).clamp(-self.shape.relative, self.shape.relative)
            mask = self.relative(back + self.shape.relative).permute(2, 0, 1)[None]
        if seen is None:
            return mask
        dtype = self.layers[0].feed.up.weight.dtype
        hidden = torch.zeros(seen.shape, dtype=dtype, device=seen.device).masked_fill(~seen, -1e4)
        return hidden[:, None, None] if mask is None else mask + hidden[:, None, None]


class Decoder(nn.Module):
    """Map ids to logits. Its layers ask `Caches` for what they attend to."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.ids = TokenEmbedding(shape.vocabulary, shape.width)
        learned, turned = shape.targets and not shape.rotary, shape.targets and shape.rotary
        self.positions = TokenEmbedding(shape.targets, shape.width) if learned else None
        # Of each table cosines, then sines, of the angles that a position turns the halves of a head by.
        self.tables = max(shape.layer_turns, default=0) + 1
        self.turns = TokenEmbedding(shape.targets, self.tables * shape.head_width) if turned else None
        # By how far back an id lies; the last stands for all beyond.
        self.relative = TokenEmbedding(shape.relative + 1, shape.decoder_heads) if shape.relative else None
        self.embedding_norm = norm_of(shape) if shape.embedding_norm else None
        memory = bool(shape.encoder_layers)
        layers = (
            Layer(shape, shape.decoder_heads, shape.decoder_inner, memory=memory, key_heads=shape.key_heads)
            for _ in range(shape.decoder_layers)
        )
        self.layers = nn.ModuleList(layers)
        for layer in self.layers:
            if layer.cross is not None:
                del layer.cross.k, layer.cross.v  # the encoder's part
        self.norm = norm_of(shape) if shape.norm_first else None
        self.head = Linear(shape.width, shape.vocabulary, bias=shape.head_bias)

    def pack(self) -> None:
        """Join linear layers that have the same input."""
        for layer in self.layers:
            layer.own.pack()

    def turn(self, q: Tensor, k: Tensor, turns: Tensor) -> tuple[Tensor, Tensor]:
        """Rotate queries and keys of a layer; see `turned`."""
        return turned(q, turns), turned(k, turns)

    def _embedded(self, ids: Tensor, table: Tensor | None) -> Tensor:
        if table is None:
            return self.ids(ids)
        beyond = ids - self.shape.vocabulary
        own = self.ids(ids.clamp(max=self.shape.vocabulary - 1))
        return torch.where((beyond >= 0)[..., None], F.embedding(beyond.clamp(min=0), table), own)

    def forward(
        self,
        ids: Tensor,
        positions: Tensor | None,
        caches: Caches,
        table: Tensor | None = None,
    ) -> Tensor:
        """Map ids [batch, new] at `positions` [batch, new] to the head's input, [batch, new, width]. `table`
        has rows [n, width] for ids from the vocabulary's end on.
        """
        shape, x = self.shape, self._embedded(ids, table)
        x = x if shape.embedding_scale == 1.0 else x * shape.embedding_scale
        if self.positions is not None:
            assert positions is not None
            x = x + F.embedding(
                positions + shape.offset if shape.offset else positions, self.positions.weight
            )
        x = x if self.embedding_norm is None else self.embedding_norm(x)
        turns = None if self.turns is None else self.turns(positions)[:, None].chunk(self.tables, -1)
        for i, layer in enumerate(self.layers):
            scale = shape.scale or shape.head_width**-0.5
            scale = scale / (i + 1) if shape.scale_by_layer else scale

            def own(y: Tensor, i: int = i, layer: Any = layer, scale: float = scale) -> Tensor:
                q, k, v = layer.own.all(y)
                if turns is not None:
                    q, k = self.turn(q, k, turns[shape.layer_turns[i] if shape.layer_turns else 0])
                return merge(caches.own(i, q, k, v, scale))

            def cross(y: Tensor, i: int = i, layer: Any = layer, scale: float = scale) -> Tensor:
                return merge(caches.memory(i, layer.cross.query(y), scale))

            x = layer.add(x, layer.own_norm, own, layer.own.out)
            if layer.cross is not None:
                x = layer.add(x, layer.cross_norm, cross, layer.cross.out)
            x = layer.add(x, layer.feed_norm, layer.feed, layer.feed.down)
        x = x if self.norm is None else self.norm(x)
        return x if shape.output_scale == 1.0 else x * shape.output_scale

    def logits(self, x: Tensor) -> Tensor:
        """Map [..., width], from `forward`, to [..., vocabulary]."""
        return capped(self.head(x), self.shape.logit_cap)


class Transformer(nn.Module):
    """An encoder, if the shape has one, and a decoder."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.encoder = Encoder(shape) if shape.encoder_layers else None
        self.decoder = Decoder(shape)
