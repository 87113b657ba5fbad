"""BART to OpenVINO: `python -m build.targets.openvino.bart --weights FOLDER --output FOLDER`.

Learned positions with an offset of 2, layer norms behind each part, generation from `</s>` with `<s>` forced
as the first word: the decoder's first ids are both (Lewis et al. 2020; transformers' modeling_bart.py).
"""

from __future__ import annotations

from pathlib import Path

import openvino as ov
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import BartConfig, BartForConditionalGeneration

from conch.bundle import EngineFacts

from .stateful import Shape, decoder_graph, extended, looked_up, merge, rename, scored, split
from .text import Arguments, export_text

OFFSET = 2
# d_model, layers, heads, ffn: the configs of facebook/bart-base and facebook/bart-large-cnn on the Hugging
# Face hub.
SHAPES = {"bart-base": (768, 6, 12, 3072), "bart-large": (1024, 12, 16, 4096)}


def random_model(name: str) -> BartForConditionalGeneration:
    """A true shape with random weights."""
    width, layers, heads, inner = SHAPES[name]
    config = BartConfig(
        d_model=width,
        encoder_layers=layers,
        decoder_layers=layers,
        encoder_attention_heads=heads,
        decoder_attention_heads=heads,
        encoder_ffn_dim=inner,
        decoder_ffn_dim=inner,
    )
    return BartForConditionalGeneration(config)


class Encoder(nn.Module):
    """Ids [1, n] to cross-attention keys and values [1, heads, n, head width], layer by layer."""

    def __init__(self, model: BartForConditionalGeneration) -> None:
        super().__init__()
        self.encoder, self.cross = (
            model.model.encoder,
            nn.ModuleList([layer.encoder_attn for layer in model.model.decoder.layers]),
        )
        self.heads, self.cross_heads = (
            model.config.encoder_attention_heads,
            model.config.decoder_attention_heads,
        )

    def forward(self, ids: Tensor) -> tuple[Tensor, ...]:
        x = (
            self.encoder.embed_tokens(ids)
            + self.encoder.embed_positions.weight[OFFSET : ids.shape[1] + OFFSET]
        )
        x = self.encoder.layernorm_embedding(x)
        for layer in self.encoder.layers:
            attention = layer.self_attn
            q, k, v = (
                split(p(x), self.heads) for p in (attention.q_proj, attention.k_proj, attention.v_proj)
            )
            x = layer.self_attn_layer_norm(
                x + attention.out_proj(merge(F.scaled_dot_product_attention(q, k, v)))
            )
            x = layer.final_layer_norm(x + layer.fc2(layer.activation_fn(layer.fc1(x))))
        return tuple(
            split(p(x), self.cross_heads) for cross in self.cross for p in (cross.k_proj, cross.v_proj)
        )


class Decoder(nn.Module):
    """One step; see stateful.py."""

    def __init__(self, model: BartForConditionalGeneration) -> None:
        super().__init__()
        self.decoder, self.head, self.heads = (
            model.model.decoder,
            model.lm_head,
            model.config.decoder_attention_heads,
        )
        self.register_buffer("final_bias", model.final_logits_bias)

    def forward(
        self,
        ids: Tensor,
        positions: Tensor,
        mask: Tensor,
        cross_mask: Tensor,
        bias: Tensor,
        beam_idx: Tensor,
        *caches: Tensor,
    ) -> tuple[Tensor, ...]:
        count = len(self.decoder.layers)
        past, memory, present = caches[: 2 * count], caches[2 * count :], []
        x = self.decoder.embed_tokens(ids) + F.embedding(
            positions + OFFSET, self.decoder.embed_positions.weight
        )
        x = self.decoder.layernorm_embedding(x)
        for i, layer in enumerate(self.decoder.layers):
            attention = layer.self_attn
            keys = extended(past[2 * i], split(attention.k_proj(x), self.heads), beam_idx)
            values = extended(past[2 * i + 1], split(attention.v_proj(x), self.heads), beam_idx)
            present += [keys, values]
            q = split(attention.q_proj(x), self.heads)
            x = layer.self_attn_layer_norm(
                x + attention.out_proj(merge(F.scaled_dot_product_attention(q, keys, values, attn_mask=mask)))
            )
            attention = layer.encoder_attn
            q = split(attention.q_proj(x) * attention.scaling, self.heads)
            x = layer.encoder_attn_layer_norm(
                x + attention.out_proj(merge(looked_up(q, memory[2 * i], memory[2 * i + 1], cross_mask)))
            )
            x = layer.final_layer_norm(x + layer.fc2(layer.activation_fn(layer.fc1(x))))
        return scored(self.head(x[:, -1]) + self.final_bias + bias, present)


def graphs(model: BartForConditionalGeneration, _: Path, __: Arguments) -> dict[str, ov.Model]:
    """All graphs."""
    config = model.config
    encoder = ov.convert_model(Encoder(model), example_input=torch.zeros(1, 7, dtype=torch.long))
    rename(
        encoder, [("ids", [1, -1])], [f"memory.{c}{i}" for i in range(config.decoder_layers) for c in "kv"]
    )
    shape = Shape(
        config.decoder_layers,
        config.decoder_attention_heads,
        config.d_model // config.decoder_attention_heads,
    )
    return {"encoder": encoder, "decoder": decoder_graph(Decoder(model), shape)}


def facts(model: BartForConditionalGeneration, arguments: Arguments) -> EngineFacts:
    """engine.json."""
    config, forced = model.config, model.generation_config.forced_bos_token_id
    start = [config.decoder_start_token_id, *([forced] if forced is not None else [])]
    longest = config.max_position_embeddings
    return EngineFacts(
        family="bart",
        layers=config.decoder_layers,
        heads=config.decoder_attention_heads,
        head_width=config.d_model // config.decoder_attention_heads,
        positions=min(arguments.max_seq_len, longest),
        memory=min(arguments.max_input_len, longest),
        vocabulary=config.vocab_size,
        end_id=config.eos_token_id,
        pad_id=config.pad_token_id,
        decoder_start=tuple(start),
    )


if __name__ == "__main__":
    export_text(__doc__, BartForConditionalGeneration, random_model, graphs, facts)
