"""OPT checkpoints, decoder-only (transformers' modeling_opt.py): learned positions with an offset of 2."""

from __future__ import annotations

from typing import Any

import torch
from transformers import OPTConfig, OPTForCausalLM

from serving.architectures.shape import Shape

from ..pictures import Unsupported
from . import renamed

ARCHITECTURE = OPTForCausalLM
OFFSET = 2
LAYER = r"^model\.decoder\.layers\.(\d+)\."
RULES = [
    (r"^model\.decoder\.embed_tokens", "decoder.ids"),
    (r"^model\.decoder\.embed_positions", "decoder.positions"),
    (r"^model\.decoder\.final_layer_norm", "decoder.norm"),
    (LAYER + r"self_attn\.([qkv])_proj", r"decoder.layers.\1.own.\2"),
    (LAYER + r"self_attn\.out_proj", r"decoder.layers.\1.own.out"),
    (LAYER + r"self_attn_layer_norm", r"decoder.layers.\1.own_norm"),
    (LAYER + r"final_layer_norm", r"decoder.layers.\1.feed_norm"),
    (LAYER + r"fc1", r"decoder.layers.\1.feed.up"),
    (LAYER + r"fc2", r"decoder.layers.\1.feed.down"),
    (r"^lm_head", "decoder.head"),
]


def shape(model: OPTForCausalLM) -> Shape:
    """Read the shape from the checkpoint."""
    return shape_of(model.config)


def shape_of(config: OPTConfig, **own: Any) -> Shape:
    """Read the shape from a configuration.

    Raises:
        Unsupported: one of the variants that the smallest checkpoints of the paper are.
    """
    if config.word_embed_proj_dim != config.hidden_size or not config.do_layer_norm_before:
        raise Unsupported(
            "config.json: embeddings narrower than the layers, or post-layer norms (opt-350m), are not "
            "supported; use another size"
        )
    if config._remove_final_layer_norm or not config.layer_norm_elementwise_affine:
        raise Unsupported("config.json: norms without weights are not supported; use another checkpoint")
    return Shape(
        family="opt",
        width=config.hidden_size,
        head_width=config.hidden_size // config.num_attention_heads,
        vocabulary=config.vocab_size,
        decoder_layers=config.num_hidden_layers,
        decoder_heads=config.num_attention_heads,
        decoder_inner=config.ffn_dim,
        targets=config.max_position_embeddings + OFFSET,
        offset=OFFSET,
        activation=config.activation_function,
        bias=config.enable_bias,
        **own,
    )


def weights(model: OPTForCausalLM) -> dict[str, torch.Tensor]:
    """Return the weights under our names."""
    return renamed(model.state_dict(), RULES)
