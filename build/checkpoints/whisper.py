"""Whisper and Distil-Whisper checkpoints (transformers' modeling_whisper.py)."""

from __future__ import annotations

from typing import Any

import torch
from transformers import WhisperConfig, WhisperForConditionalGeneration

from serving.architectures.shape import Shape

from ..whisper_vocabulary import ALIGNMENT_HEADS
from . import encoder_decoder, renamed
from .arguments import Arguments

ARCHITECTURE = WhisperForConditionalGeneration
# Width, encoder and decoder layers, heads, mel bins, vocabulary: openai/whisper model card and the configs on
# the Hugging Face hub.
SHAPES = {
    "whisper-tiny": (384, 4, 4, 6, 80, 51865),
    "whisper-base": (512, 6, 6, 8, 80, 51865),
    "whisper-small": (768, 12, 12, 12, 80, 51865),
    "whisper-large-v3-turbo": (1280, 32, 4, 20, 128, 51866),
}
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


def random_model(name: str) -> WhisperForConditionalGeneration:
    """Build transformers' model in a true shape with random weights and the true model's alignment heads."""
    width, encoder, decoder, heads, mels, vocabulary = SHAPES[name]
    config = WhisperConfig(
        d_model=width,
        encoder_layers=encoder,
        decoder_layers=decoder,
        encoder_attention_heads=heads,
        decoder_attention_heads=heads,
        encoder_ffn_dim=4 * width,
        decoder_ffn_dim=4 * width,
        num_mel_bins=mels,
        vocab_size=vocabulary,
        decoder_start_token_id=50258,
        bos_token_id=50257,
        eos_token_id=50257,
        pad_token_id=50257,
    )
    model = WhisperForConditionalGeneration(config)
    model.generation_config.alignment_heads = ALIGNMENT_HEADS[name.removeprefix("whisper-")]
    return model


def alignment_heads(model: WhisperForConditionalGeneration) -> tuple[tuple[int, int], ...]:
    """Return (layer, head) pairs from the checkpoint if all exist (distilled ones may list their teacher's),
    otherwise every head of the upper half of the layers (openai/whisper model.py).
    """
    config, named = model.config, getattr(model.generation_config, "alignment_heads", None)
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
        "aligns": True,
        "timestamp_rules": True,
    }
