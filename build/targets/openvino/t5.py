"""T5 (and Flan-T5, T5 v1.1: gated feed-forward) to OpenVINO: `python -m build.targets.openvino.t5 --weights
FOLDER --output FOLDER`.

Attention has no scale and no positions; a bias by relative distance is added to its scores (Raffel et al.
2020, §2.1). In the decoder it comes in with the mask, since rows of a running batch sit at different places
of a common time axis: relative_bias.npy [heads, distance].
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import openvino as ov
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import T5Config, T5ForConditionalGeneration
from transformers.models.t5.modeling_t5 import T5Attention

from conch.bundle import EngineFacts

from .stateful import Shape, decoder_graph, extended, looked_up, merge, rename, scored, split
from .text import Arguments, export_text

# d_model, layers, heads, d_kv, d_ff, gated, tied: the configs of google-t5/t5-small and google/flan-t5-small
# on the Hugging Face hub.
SHAPES = {
    "t5-small": (512, 6, 8, 64, 2048, False, True),
    "flan-t5-small": (512, 8, 6, 64, 1024, True, False),
    "flan-t5-base": (768, 12, 12, 64, 2048, True, False),
}


def random_model(name: str) -> T5ForConditionalGeneration:
    """A true shape with random weights."""
    width, layers, heads, head_width, inner, gated, tied = SHAPES[name]
    config = T5Config(
        d_model=width,
        num_layers=layers,
        num_decoder_layers=layers,
        num_heads=heads,
        d_kv=head_width,
        d_ff=inner,
        vocab_size=32128,
        feed_forward_proj="gated-gelu" if gated else "relu",
        tie_word_embeddings=tied,
        decoder_start_token_id=0,
    )
    return T5ForConditionalGeneration(config)


class Encoder(nn.Module):
    """Ids [1, n] to cross-attention keys and values [1, heads, n, head width], layer by layer."""

    def __init__(self, model: T5ForConditionalGeneration) -> None:
        super().__init__()
        self.encoder, self.heads = model.encoder, model.config.num_heads
        self.cross = nn.ModuleList([block.layer[1].EncDecAttention for block in model.decoder.block])

    def forward(self, ids: Tensor) -> tuple[Tensor, ...]:
        x = self.encoder.embed_tokens(ids)
        first: T5Attention = self.encoder.block[0].layer[0].SelfAttention
        places = torch.arange(ids.shape[1])
        buckets = T5Attention._relative_position_bucket(
            places[None] - places[:, None],
            True,
            first.relative_attention_num_buckets,
            first.relative_attention_max_distance,
        )
        bias = first.relative_attention_bias(buckets).permute(2, 0, 1)[None]
        for block in self.encoder.block:
            y, attention = block.layer[0].layer_norm(x), block.layer[0].SelfAttention
            q, k, v = (split(p(y), self.heads) for p in (attention.q, attention.k, attention.v))
            x = x + attention.o(merge(F.scaled_dot_product_attention(q, k, v, attn_mask=bias, scale=1.0)))
            x = x + block.layer[1].DenseReluDense(block.layer[1].layer_norm(x))
        x = self.encoder.final_layer_norm(x)
        return tuple(split(p(x), self.heads) for cross in self.cross for p in (cross.k, cross.v))


class Decoder(nn.Module):
    """One step; see stateful.py."""

    def __init__(self, model: T5ForConditionalGeneration) -> None:
        super().__init__()
        self.decoder, self.head, self.heads = model.decoder, model.lm_head, model.config.num_heads
        self.scale = model.config.d_model**-0.5 if model.config.scale_decoder_outputs else 1.0

    def forward(
        self, ids: Tensor, mask: Tensor, cross_mask: Tensor, bias: Tensor, beam_idx: Tensor, *caches: Tensor
    ) -> tuple[Tensor, ...]:
        count = len(self.decoder.block)
        past, memory, present = caches[: 2 * count], caches[2 * count :], []
        x = self.decoder.embed_tokens(ids)
        for i, block in enumerate(self.decoder.block):
            y, attention = block.layer[0].layer_norm(x), block.layer[0].SelfAttention
            keys = extended(past[2 * i], split(attention.k(y), self.heads), beam_idx)
            values = extended(past[2 * i + 1], split(attention.v(y), self.heads), beam_idx)
            present += [keys, values]
            x = x + attention.o(
                merge(
                    F.scaled_dot_product_attention(
                        split(attention.q(y), self.heads), keys, values, attn_mask=mask, scale=1.0
                    )
                )
            )
            y, attention = block.layer[1].layer_norm(x), block.layer[1].EncDecAttention
            x = x + attention.o(
                merge(
                    looked_up(split(attention.q(y), self.heads), memory[2 * i], memory[2 * i + 1], cross_mask)
                )
            )
            x = x + block.layer[2].DenseReluDense(block.layer[2].layer_norm(x))
        return scored(self.head(self.decoder.final_layer_norm(x)[:, -1] * self.scale) + bias, present)


def relative_bias(model: T5ForConditionalGeneration, distances: int) -> np.ndarray:
    """float32 [heads, distances]: what the decoder adds to the score of an id that lies so many
    places back.
    """
    first: T5Attention = model.decoder.block[0].layer[0].SelfAttention
    back = -torch.arange(distances)
    buckets = T5Attention._relative_position_bucket(
        back, False, first.relative_attention_num_buckets, first.relative_attention_max_distance
    )
    return first.relative_attention_bias(buckets).T.contiguous().float().numpy()


def graphs(model: T5ForConditionalGeneration, output: Path, _: Arguments) -> dict[str, ov.Model]:
    """All graphs; the bias goes beside them."""
    config = model.config
    np.save(output / "relative_bias.npy", relative_bias(model, config.relative_attention_max_distance + 1))
    encoder = ov.convert_model(Encoder(model), example_input=torch.zeros(1, 7, dtype=torch.long))
    rename(
        encoder,
        [("ids", [1, -1])],
        [f"memory.{c}{i}" for i in range(config.num_decoder_layers) for c in "kv"],
    )
    shape = Shape(
        config.num_decoder_layers, config.num_heads, config.d_kv, positions=False, mask_per_head=True
    )
    return {"encoder": encoder, "decoder": decoder_graph(Decoder(model), shape)}


def facts(model: T5ForConditionalGeneration, arguments: Arguments) -> EngineFacts:
    """engine.json. Neither side of the model has an end of its own: the limits are the builder's."""
    config: T5Config = model.config
    return EngineFacts(
        family="t5",
        layers=config.num_decoder_layers,
        heads=config.num_heads,
        head_width=config.d_kv,
        positions=arguments.max_seq_len,
        memory=arguments.max_input_len,
        vocabulary=config.vocab_size,
        end_id=config.eos_token_id,
        pad_id=config.pad_token_id,
        decoder_start=(config.decoder_start_token_id,),
    )


if __name__ == "__main__":
    export_text(__doc__, T5ForConditionalGeneration, random_model, graphs, facts)
