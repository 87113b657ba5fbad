"""T5, and Flan-T5 and T5 v1.1 with their gated feed-forward (transformers' modeling_t5.py).

Attention is not scaled and has no positions; a bias by relative distance is added to the scores (Raffel et
al. 2020, §2.1). Its buckets are resolved here into one value for each distance.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers import T5Config, T5ForConditionalGeneration
from transformers.models.t5.modeling_t5 import T5Attention

from serving.architectures.shape import Shape

from . import renamed
from .arguments import Arguments

ARCHITECTURE = T5ForConditionalGeneration
RULES = [
    (r"^decoder\.block\.(\d+)\.layer\.1\.EncDecAttention\.k", r"encoder.keys.\1"),
    (r"^decoder\.block\.(\d+)\.layer\.1\.EncDecAttention\.v", r"encoder.values.\1"),
    (r"\.block\.(\d+)\.layer\.1\.EncDecAttention\.q", r".layers.\1.cross.q"),
    (r"\.block\.(\d+)\.layer\.1\.EncDecAttention\.o", r".layers.\1.cross.out"),
    (r"\.block\.(\d+)\.layer\.0\.SelfAttention\.([qkv])", r".layers.\1.own.\2"),
    (r"\.block\.(\d+)\.layer\.0\.SelfAttention\.o", r".layers.\1.own.out"),
    (r"\.block\.(\d+)\.layer\.0\.layer_norm", r".layers.\1.own_norm"),
    (r"^decoder\.block\.(\d+)\.layer\.1\.layer_norm", r"decoder.layers.\1.cross_norm"),
    (r"\.block\.(\d+)\.layer\.[12]\.layer_norm", r".layers.\1.feed_norm"),
    (r"\.block\.(\d+)\.layer\.[12]\.DenseReluDense\.(wi_0|wi)\.", r".layers.\1.feed.up."),
    (r"\.block\.(\d+)\.layer\.[12]\.DenseReluDense\.wi_1", r".layers.\1.feed.gate"),
    (r"\.block\.(\d+)\.layer\.[12]\.DenseReluDense\.wo", r".layers.\1.feed.down"),
    (r"coder\.embed_tokens", "coder.ids"),
    (r"coder\.final_layer_norm", "coder.norm"),
    (r"^lm_head", "decoder.head"),
]


def shape(model: T5ForConditionalGeneration) -> Shape:
    """Read the shape from the checkpoint."""
    config = model.config
    return Shape(
        family="t5",
        width=config.d_model,
        head_width=config.d_kv,
        vocabulary=config.vocab_size,
        decoder_layers=config.num_decoder_layers,
        decoder_heads=config.num_heads,
        decoder_inner=config.d_ff,
        encoder_layers=config.num_layers,
        encoder_heads=config.num_heads,
        encoder_inner=config.d_ff,
        relative=config.relative_attention_max_distance,
        activation=config.dense_act_fn,
        gated=config.is_gated_act,
        norm="rms",
        epsilon=config.layer_norm_epsilon,
        bias=False,
        scale=1.0,
        output_scale=config.d_model**-0.5 if config.scale_decoder_outputs else 1.0,
    )


def weights(model: T5ForConditionalGeneration) -> dict[str, torch.Tensor]:
    """Return the weights under our names, with relative biases by distance."""
    found = renamed(model.state_dict(), RULES)
    kept = {
        name: tensor
        for name, tensor in found.items()
        if not name.startswith("shared.") and "relative_attention_bias" not in name
    }
    longest = model.config.relative_attention_max_distance
    encoder, decoder = (part.block[0].layer[0].SelfAttention for part in (model.encoder, model.decoder))
    return {
        **kept,
        "encoder.relative.weight": _by_distance(encoder, torch.arange(-longest, longest + 1), both=True),
        "decoder.relative.weight": _by_distance(decoder, -torch.arange(longest + 1), both=False),
    }


def _by_distance(attention: T5Attention, distances: torch.Tensor, *, both: bool) -> torch.Tensor:
    """Return [distances, heads]: the bias added to the score of a token at that distance."""
    buckets = T5Attention._relative_position_bucket(
        distances, both, attention.relative_attention_num_buckets, attention.relative_attention_max_distance
    )
    return attention.relative_attention_bias.weight.detach()[buckets]


def facts(model: Any, arguments: Arguments) -> dict[str, Any]:
    """Return what engine.json says and the shape does not. Neither side of the model limits its length: the
    limits are the builder's.
    """
    config: T5Config = model.config
    return {
        "positions": arguments.max_seq_len,
        "encoder_positions": arguments.max_input_len,
        "end_id": config.eos_token_id,
        "pad_id": config.pad_token_id,
        "decoder_start": (config.decoder_start_token_id,),
    }
