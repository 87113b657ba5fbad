"""LLaMA, a decoder alone (transformers' modeling_llama.py): RMS norms, a gated feed-forward, rotary
positions, and heads of queries that may share keys and values.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from conch.bundle import EngineFacts
from serving.architectures.transformer import Shape

from ..pictures import Unsupported
from . import end_id, facts_of, renamed
from .arguments import Arguments

ARCHITECTURE = LlamaForCausalLM
# hidden_size, layers, heads, key heads, intermediate_size: the configs of TinyLlama/TinyLlama-1.1B-Chat-v1.0
# and meta-llama/Llama-2-7b on the Hugging Face hub.
SHAPES = {"tinyllama-1.1b": (2048, 22, 32, 4, 5632), "llama-2-7b": (4096, 32, 32, 32, 11008)}
RULES = [
    (r"^model\.embed_tokens", "decoder.ids"),
    (r"^model\.norm", "decoder.norm"),
    (r"^model\.layers\.(\d+)\.self_attn\.([qkv])_proj", r"decoder.layers.\1.own.\2"),
    (r"^model\.layers\.(\d+)\.self_attn\.o_proj", r"decoder.layers.\1.own.out"),
    (r"^model\.layers\.(\d+)\.input_layernorm", r"decoder.layers.\1.own_norm"),
    (r"^model\.layers\.(\d+)\.post_attention_layernorm", r"decoder.layers.\1.feed_norm"),
    (r"^model\.layers\.(\d+)\.mlp\.gate_proj", r"decoder.layers.\1.feed.up"),  # ours is activated, too
    (r"^model\.layers\.(\d+)\.mlp\.up_proj", r"decoder.layers.\1.feed.gate"),
    (r"^model\.layers\.(\d+)\.mlp\.down_proj", r"decoder.layers.\1.feed.down"),
    (r"^lm_head", "decoder.head"),
]
CHANGING = ("dynamic", "longrope")  # angles that depend on how long a text has become


def random_model(name: str) -> LlamaForCausalLM:
    """A true shape with random weights."""
    width, layers, heads, key_heads, inner = SHAPES[name]
    config = LlamaConfig(
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=key_heads,
        intermediate_size=inner,
        max_position_embeddings=4096 if name == "llama-2-7b" else 2048,
    )
    return LlamaForCausalLM(config)


def shape(model: LlamaForCausalLM) -> Shape:
    """Of the checkpoint."""
    return shape_of(model.config)


def shape_of(config: LlamaConfig, **own: Any) -> Shape:
    """Of a configuration.

    Raises:
        Unsupported: a model that is like LLaMA in its name only.
    """
    if config.attention_bias or config.mlp_bias:
        raise Unsupported(
            "config.json: attention_bias or mlp_bias is true; LLaMA's projections have no biases"
        )
    if (kind := str(config.rope_parameters.get("rope_type"))) in CHANGING:
        raise Unsupported(
            f"config.json: rope_type is {kind}; this family supports unscaled rotary embeddings only"
        )
    heads, key_heads = config.num_attention_heads, config.num_key_value_heads
    return Shape(
        family="llama",
        width=config.hidden_size,
        head_width=config.head_dim or config.hidden_size // heads,
        vocabulary=config.vocab_size,
        decoder_layers=config.num_hidden_layers,
        decoder_heads=heads,
        decoder_inner=config.intermediate_size,
        targets=config.max_position_embeddings,
        activation=config.hidden_act,
        gated=True,
        norm="rms",
        epsilon=config.rms_norm_eps,
        bias=False,
        rotary=True,
        key_heads=0 if key_heads == heads else key_heads,
        **own,
    )


def weights(model: LlamaForCausalLM) -> dict[str, torch.Tensor]:
    """Under our names."""
    return weights_of(model.state_dict(), model.model.rotary_emb, model.config)


def weights_of(
    state: Mapping[str, torch.Tensor], rotary: torch.nn.Module, config: LlamaConfig
) -> dict[str, torch.Tensor]:
    """Under our names, with the table of cosines and sines that transformers' module makes."""
    places = torch.arange(config.max_position_embeddings)[None]
    cosines, sines = rotary(torch.zeros(1), places)
    half = cosines.shape[-1] // 2  # both halves are the same
    turns = torch.cat([cosines[0, :, :half], sines[0, :, :half]], -1)
    return {**renamed(state, RULES), "decoder.turns.weight": turns}


def facts(model: LlamaForCausalLM, arguments: Arguments) -> EngineFacts:
    """engine.json."""
    return facts_for(model, shape(model), arguments)


def facts_for(model: Any, shape: Shape, arguments: Arguments) -> EngineFacts:
    """engine.json of a model that ends with this decoder. Without padding of its own, its end stands in."""
    config, end = model.config.get_text_config(), end_id(model)
    pad = config.pad_token_id
    return facts_of(
        shape,
        positions=min(arguments.max_seq_len, shape.targets - shape.offset),
        end_id=end,
        pad_id=end if pad is None or not 0 <= pad < shape.vocabulary else pad,
    )
