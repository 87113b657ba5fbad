"""What differs between the transformers of all families, as data (architecture.json)."""

from __future__ import annotations

from dataclasses import dataclass

from .stored import Stored


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
    def cached_heads(self) -> int:
        """Return the number of key and value heads that the decoder caches."""
        return self.key_heads or self.decoder_heads
