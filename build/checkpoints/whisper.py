"""Whisper and Distil-Whisper checkpoints (transformers' modeling_whisper.py)."""

from __future__ import annotations

from typing import Any

import torch
from transformers import WhisperForConditionalGeneration

from serving.architectures.shape import Shape

from ..whisper_vocabulary import ALIGNMENT_HEADS
from . import encoder_decoder, renamed
from .arguments import Arguments

ARCHITECTURE = WhisperForConditionalGeneration
# Also BART's.
RULES = [
    (r"^decoder\.layers\.(\d+)\.encoder_attn\.k_proj", r"encoder.keys.\1"),
    (r"^decoder\.layers\.(\d+)\.encoder_attn\.v_proj", r"encoder.values.\1"),
    (r"\.encoder_attn\.(q|out)_proj", r".cross.\1"),
    (r"\.self_attn\.(q|k|v|out)_proj", r".own.\1"),
    (r"\.self_attn_layer_norm", ".own_norm"),
    (r"\.encoder_attn_layer_norm", ".cross_norm"),
    (r"\.final_layer_norm", ".feed_norm"),
    (r"\.fc1", ".feed.up"),
    (r"\.fc2", ".feed.down"),
    (r"coder\.embed_tokens", "coder.ids"),
    (r"coder\.embed_positions", "coder.positions"),
    (r"coder\.layer_norm", "coder.norm"),
    (r"coder\.layernorm_embedding", "coder.embedding_norm"),
    (r"^(proj_out|lm_head)", "decoder.head"),
    (r"^final_logits_bias", "decoder.head.bias"),
]


def alignment_heads(model: WhisperForConditionalGeneration) -> tuple[tuple[int, int], ...]:
    """Return (layer, head) pairs from the checkpoint, or of the true model for random weights, if all exist
    (distilled ones may list their teacher's), otherwise every head of the upper half of the layers
    (openai/whisper model.py).
    """
    config, shape = model.config, model.config.name_or_path.removeprefix("whisper-")
    named = getattr(model.generation_config, "alignment_heads", ALIGNMENT_HEADS.get(shape))
    layers, heads = config.decoder_layers, config.decoder_attention_heads
    if named and all(layer < layers and head < heads for layer, head in named):
        return tuple(sorted((layer, head) for layer, head in named))
    return tuple((layer, head) for layer in range(layers // 2, layers) for head in range(heads))


def shape(model: WhisperForConditionalGeneration) -> Shape:
    """Read the shape from the checkpoint."""
    config = model.config
    return encoder_decoder(
        config,
        family="whisper",
        mels=config.num_mel_bins,
        sources=config.max_source_positions,
        targets=config.max_target_positions,
        key_bias=False,
        alignment_heads=alignment_heads(model),
    )


def weights(model: WhisperForConditionalGeneration) -> dict[str, torch.Tensor]:
    """Return the weights under our names."""
    return renamed(model.state_dict(), RULES, "model.")


def facts(model: Any, _: Arguments) -> dict[str, Any]:
    """Return what engine.json says and the shape does not."""
    config, generation = model.config, model.generation_config
    return {
        "positions": config.max_target_positions,
        "encoder_positions": config.max_source_positions,
        "suppress": tuple(sorted(set(generation.suppress_tokens or []))),
        "end_id": config.eos_token_id,
        "timestamp_rules": True,
    }
