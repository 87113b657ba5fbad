"""GPT-2 checkpoints, decoder-only (transformers' modeling_gpt2.py)."""

from __future__ import annotations

import torch
from transformers import GPT2LMHeadModel

from serving.architectures.shape import Shape

from . import renamed

ARCHITECTURE = GPT2LMHeadModel
RULES = [
    (r"^transformer\.wte", "decoder.ids"),
    (r"^transformer\.wpe", "decoder.positions"),
    (r"^transformer\.ln_f", "decoder.norm"),
    (r"^transformer\.h\.(\d+)\.ln_1", r"decoder.layers.\1.own_norm"),
    (r"^transformer\.h\.(\d+)\.ln_2", r"decoder.layers.\1.feed_norm"),
    (r"^transformer\.h\.(\d+)\.attn\.c_proj", r"decoder.layers.\1.own.out"),
    (r"^transformer\.h\.(\d+)\.attn\.c_attn", r"decoder.layers.\1.own.qkv"),
    (r"^transformer\.h\.(\d+)\.mlp\.c_fc", r"decoder.layers.\1.feed.up"),
    (r"^transformer\.h\.(\d+)\.mlp\.c_proj", r"decoder.layers.\1.feed.down"),
    (r"^lm_head", "decoder.head"),
]
TRANSPOSED = ("own.out.weight", "own.qkv.weight", "feed.up.weight", "feed.down.weight")  # its Conv1D


def shape(model: GPT2LMHeadModel) -> Shape:
    """Read the shape from the checkpoint."""
    config = model.config
    return Shape(
        family="gpt2",
        width=config.n_embd,
        head_width=config.n_embd // config.n_head,
        vocabulary=config.vocab_size,
        decoder_layers=config.n_layer,
        decoder_heads=config.n_head,
        decoder_inner=config.n_inner or 4 * config.n_embd,
        targets=config.n_positions,
        activation=config.activation_function,
        epsilon=config.layer_norm_epsilon,
        scale=0.0 if config.scale_attn_weights else 1.0,
        scale_by_layer=config.scale_attn_by_inverse_layer_idx,
    )


def weights(model: GPT2LMHeadModel) -> dict[str, torch.Tensor]:
    """Return the weights under our names, with queries, keys and values split."""
    found: dict[str, torch.Tensor] = {}
    for name, tensor in renamed(model.state_dict(), RULES).items():
        own = tensor.T.contiguous() if name.endswith(TRANSPOSED) else tensor
        if ".own.qkv." in name:
            found |= {name.replace("qkv", part): half for part, half in zip("qkv", own.chunk(3), strict=True)}
        else:
            found[name] = own
    return found
