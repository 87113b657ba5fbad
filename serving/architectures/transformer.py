"""One transformer for every family: a Shape describes the differences, and the caller provides the caches.

Vaswani et al. 2017; Whisper: Radford et al. 2022; T5: Raffel et al. 2020; BART: Lewis et al. 2020; GPT-2:
Radford et al. 2019; LLaMA: Touvron et al. 2023, and decoders that differ from it in details; OPT: Zhang et
al. 2022. Checked against transformers' models of the same names (tests/unit/serving).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .stored import Stored

MOST_HEADS = 32  # see Shape.step_heads; OpenAI's models name 5 to 23


@dataclass(frozen=True)
class Shape(Stored):
    """What differs between architectures (architecture.json).

    Attributes:
        mels: width of the features that the encoder reads; 0 if it reads ids
        sources: rows of the encoder's position table, as `targets` of the decoder's; 0 without one
        offset: row of position 0
        rotary: the decoder's table rotates queries and keys (Su et al. 2021) instead of being added
        key_heads: key and value heads of the decoder, each shared by several query heads (Ainslie et al.
            2023); 0 for as many as query heads
        prompt_table: requests may bring rows, addressed by ids from `vocabulary` on
        relative: the longest distance that relative positions distinguish; 0 without them
        norm: "layer" or "rms"
        norm_first: norms stand before each part instead of after it
        scale: of attention scores; 0 for 1 / sqrt(head width); divided by the layer's number if
            `scale_by_layer`
        key_bias: keys have a bias, like queries and values
        qkv_bias: decoder-only: queries, keys and values have biases, other products do not
        head_norm: decoder-only: RMS norms of each head's queries and keys
        post_norms: decoder-only: RMS norms of each part's output
        layer_turns: decoder-only: rotary table of each layer; empty if there is one
        window: decoder-only: sliding window of the layers in `windowed`, including the id itself; 0 for all
            ids
        score_cap: decoder-only: attention scores x become cap * tanh(x / cap), as do logits with `logit_cap`;
            0 leaves them
    """

    family: str
    width: int
    head_width: int
    vocabulary: int
    decoder_layers: int
    decoder_heads: int
    decoder_inner: int
    encoder_layers: int = 0
    encoder_heads: int = 0
    encoder_inner: int = 0
    mels: int = 0
    sources: int = 0
    targets: int = 0
    offset: int = 0
    relative: int = 0
    activation: str = "gelu"
    gated: bool = False
    norm: str = "layer"
    norm_first: bool = True
    epsilon: float = 1e-5
    embedding_norm: bool = False
    bias: bool = True
    key_bias: bool = True
    head_bias: bool = False
    scale: float = 0.0
    scale_by_layer: bool = False
    embedding_scale: float = 1.0
    output_scale: float = 1.0
    alignment_heads: tuple[tuple[int, int], ...] = ()
    rotary: bool = False
    key_heads: int = 0
    prompt_table: bool = False
    qkv_bias: bool = False
    head_norm: bool = False
    post_norms: bool = False
    layer_turns: tuple[int, ...] = ()
    window: int = 0
    windowed: tuple[int, ...] = ()
    score_cap: float = 0.0
    logit_cap: float = 0.0

    def window_of(self, layer: int) -> int:
        """Return the sliding window of a decoder layer in ids, including the id itself; 0 for all."""
        return self.window if layer in self.windowed else 0

    @property
    def step_heads(self) -> tuple[tuple[int, int], ...]:
        """Return the (layer, head) pairs whose cross-attention is returned for each decoding step: the
        alignment heads, if they are few. A checkpoint that names none would have half of all heads, and each
        costs the façade 3 kB per id for a window of 30 s.
        """
        return self.alignment_heads if len(self.alignment_heads) <= MOST_HEADS else ()

    @property
    def cached_heads(self) -> int:
        """Return the number of key and value heads that the decoder caches."""
        return self.key_heads or self.decoder_heads


class Caches(Protocol):
    """Keys and values of earlier ids, wherever they are stored."""

    def own(self, layer: int, q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
        """Store `k` and `v` [batch, key heads, new, head width] and attend with `q` [batch, heads, new, head
        width] to everything stored for the layer. Returns the shape of `q`.
        """

    def memory(self, layer: int, q: Tensor, scale: float) -> Tensor:
        """Attend to the encoder output for the layer; shapes as in `own`."""


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_new": lambda x: F.gelu(x, approximate="tanh"),
    "relu": F.relu,
    "silu": F.silu,
}


class _Loaded:
    """Skips random initialisation, which takes seconds, since weights are always loaded."""

    def reset_parameters(self) -> None:
        """Do nothing."""


class Linear(_Loaded, nn.Linear):
    """See _Loaded."""


class NormedLinear(Linear):
    """A linear layer followed by an RMS norm."""

    def __init__(self, inner: int, shape: Shape) -> None:
        super().__init__(inner, shape.width, bias=shape.bias)
        self.after = nn.RMSNorm(shape.width, eps=shape.epsilon)

    def forward(self, x: Tensor) -> Tensor:
        """Map [..., inner] to [..., width]."""
        normed: Tensor = self.after(super().forward(x))
        return normed


class TokenEmbedding(_Loaded, nn.Embedding):
    """See _Loaded."""


class Conv1d(_Loaded, nn.Conv1d):
    """See _Loaded."""


def split(x: Tensor, heads: int) -> Tensor:
    """Reshape [batch, time, width] to [batch, heads, time, width / heads]."""
    return x.view(x.shape[0], x.shape[1], heads, -1).transpose(1, 2)


def merge(x: Tensor) -> Tensor:
    """Reshape [batch, heads, time, head width] to [batch, time, width], the inverse of split."""
    return x.transpose(1, 2).reshape(x.shape[0], x.shape[2], -1)


def turned(x: Tensor, turns: Tensor) -> Tensor:
    """Rotate `x` [batch, heads, time, head width], whose halves are coordinates of points, by the angles in
    `turns` [batch, 1, time, head width]: cosines, then sines (transformers' `rotate_half`).
    """
    (cosines, sines), (first, second) = turns.chunk(2, -1), x.chunk(2, -1)
    return torch.cat([first * cosines - second * sines, second * cosines + first * sines], -1)


def capped(x: Tensor, cap: float) -> Tensor:
    """Return cap * tanh(x / cap), or `x` where `cap` is 0."""
    return torch.tanh(x / cap) * cap if cap else x


def _last(shape: Shape, inner: int) -> Linear:
    """Make the linear layer that a part of a layer ends with."""
    return NormedLinear(inner, shape) if shape.post_norms else Linear(inner, shape.width, bias=shape.bias)


def _norm(shape: Shape) -> nn.Module:
    kind = nn.RMSNorm if shape.norm == "rms" else nn.LayerNorm
    return kind(shape.width, eps=shape.epsilon)


class Attention(nn.Module):
    """Projections of one attention. `packed` makes one product of three; `key_heads` is the number of key and
    value heads, if not `heads`.
    """

    def __init__(self, shape: Shape, heads: int, key_heads: int = 0) -> None:
        super().__init__()
        inner, kept = heads * shape.head_width, (key_heads or heads) * shape.head_width
        self.heads, self.key_heads = heads, key_heads or heads
        bias = shape.bias or shape.qkv_bias
        self.q = Linear(shape.width, inner, bias=bias)
        self.k = Linear(shape.width, kept, bias=bias and shape.key_bias)
        self.v = Linear(shape.width, kept, bias=bias)
        self.out = _last(shape, inner)
        self.packed: nn.Linear | None = None
        self.epsilon = shape.epsilon
        self.q_norm, self.k_norm = (
            nn.Parameter(torch.ones(shape.head_width)) if shape.head_norm else None for _ in range(2)
        )

    def pack(self) -> None:
        """Join the weights of queries, keys and values."""
        self.packed = joined([self.q, self.k, self.v])
        del self.q, self.k, self.v

    def query(self, x: Tensor) -> Tensor:
        """Return queries [batch, heads, time, head width]."""
        return split(self.q(x), self.heads)

    def all(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys and values; shapes as in `query`."""
        if self.packed is None:
            q, k, v = self.query(x), split(self.k(x), self.key_heads), split(self.v(x), self.key_heads)
            if self.q_norm is not None:
                q, k = self._unit(q) * self.q_norm, self._unit(k) * self.k_norm
            return q, k, v
        parts = split(self.packed(x), self.heads + 2 * self.key_heads)
        if self.q_norm is None:
            q, k, v = parts.split([self.heads, self.key_heads, self.key_heads], 1)
            return q, k, v
        both, v = parts.split([self.heads + self.key_heads, self.key_heads], 1)
        assert self.k_norm is not None
        own = [self.q_norm.expand(self.heads, -1), self.k_norm.expand(self.key_heads, -1)]
        q, k = (self._unit(both) * torch.cat(own)[:, None]).split([self.heads, self.key_heads], 1)
        return q, k, v

    def _unit(self, x: Tensor) -> Tensor:
        """Scale `x` [batch, heads, time, head width] so that each vector's root mean square is 1."""
        return F.rms_norm(x, x.shape[-1:], None, self.epsilon)


def joined(parts: Sequence[nn.Linear]) -> nn.Linear:
    """Join several linear layers of the same input into one; parts without a bias get zeros."""
    weight = torch.cat([part.weight for part in parts])
    whole = Linear(weight.shape[1], weight.shape[0], bias=any(part.bias is not None for part in parts))
    whole.weight = nn.Parameter(weight, requires_grad=False)
    if whole.bias is not None:
        zero = [part.weight.new_zeros(part.weight.shape[0]) for part in parts]
        biases = [
            part.bias if part.bias is not None else none for part, none in zip(parts, zero, strict=True)
        ]
        whole.bias = nn.Parameter(torch.cat(biases), requires_grad=False)
    return whole


class FeedForward(nn.Module):
    """Two linear layers with an activation between, optionally gated by a third (Shazeer 2020)."""

    def __init__(self, shape: Shape, inner: int) -> None:
        super().__init__()
        self.up = Linear(shape.width, inner, bias=shape.bias)
        self.gate = Linear(shape.width, inner, bias=shape.bias) if shape.gated else None
        self.down = _last(shape, inner)
        self.activation = ACTIVATIONS[shape.activation]

    def forward(self, x: Tensor) -> Tensor:
        """Return the input of `down`."""
        y = self.activation(self.up(x))
        return y if self.gate is None else y * self.gate(x)


class Layer(nn.Module):
    """Self-attention, cross-attention if there is an encoder, and feed-forward, each with a residual
    connection.
    """

    def __init__(self, shape: Shape, heads: int, inner: int, *, memory: bool, key_heads: int = 0) -> None:
        super().__init__()
        self.norm_first = shape.norm_first
        self.own, self.own_norm = Attention(shape, heads, key_heads), _norm(shape)
        self.cross = Attention(shape, heads) if memory else None
        self.cross_norm = _norm(shape) if memory else None
        self.feed, self.feed_norm = FeedForward(shape, inner), _norm(shape)

    def add(self, x: Tensor, norm: nn.Module, part: Callable[[Tensor], Tensor], last: nn.Linear) -> Tensor:
        """Add to `x` [batch, time, width] the output of a part, whose last linear layer is `last`, with its
        norm.
        """
        if not self.norm_first:
            return norm(x + last(part(x)))
        return self.added(x, part(norm(x)), last)

    def added(self, x: Tensor, y: Tensor, last: nn.Linear) -> Tensor:
        """Return x + last(y), [batch, time, width]."""
        return x + last(y)


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
        self.embedding_norm = _norm(shape) if shape.embedding_norm else None
        layers = (
            Layer(shape, shape.encoder_heads, shape.encoder_inner, memory=False)
            for _ in range(shape.encoder_layers)
        )
        self.layers = nn.ModuleList(layers)
        self.norm = _norm(shape) if shape.norm_first else None
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
        self.embedding_norm = _norm(shape) if shape.embedding_norm else None
        memory = bool(shape.encoder_layers)
        layers = (
            Layer(shape, shape.decoder_heads, shape.decoder_inner, memory=memory, key_heads=shape.key_heads)
            for _ in range(shape.decoder_layers)
        )
        self.layers = nn.ModuleList(layers)
        for layer in self.layers:
            if layer.cross is not None:
                del layer.cross.k, layer.cross.v  # the encoder's part
        self.norm = _norm(shape) if shape.norm_first else None
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
        layers: int = 0,
        table: Tensor | None = None,
    ) -> Tensor:
        """Map ids [batch, new] at `positions` [batch, new] to the head's input, [batch, new, width]; `layers`
        limits how many run. `table` has rows [n, width] for ids from the vocabulary's end on.
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
        for i, layer in enumerate(self.layers[: layers or None]):
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


class AlignmentCaches:
    """Caches of a decoder that reads a whole text at once and records cross-attention: `seen` holds [batch,
    new, encoder positions] of each of the (layer, head) `pairs`. `keys_values` are the encoder output's,
    layer by layer [batch, heads, encoder positions, head width].
    """

    def __init__(self, keys_values: Sequence[Tensor], pairs: Sequence[tuple[int, int]]) -> None:
        self.keys_values, self.pairs = keys_values, pairs
        self.seen: list[Tensor] = []

    def own(self, layer: int, q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
        """See Caches."""
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale)

    def memory(self, layer: int, q: Tensor, scale: float) -> Tensor:
        """See Caches."""
        keys, values = self.keys_values[2 * layer : 2 * layer + 2]
        weights = torch.softmax((q * scale) @ keys.transpose(-1, -2), -1)
        self.seen += [weights[:, head] for at, head in self.pairs if at == layer]
        return weights @ values

    @property
    def layers(self) -> int:
        """Return how many layers must run."""
        return max(layer for layer, _ in self.pairs) + 1
