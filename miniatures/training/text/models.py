"""The miniatures' shapes, their losses, and their folders in Hugging Face layout."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import Tensor
from torch.nn import functional as F
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    GenerationConfig,
    GPT2Config,
    GPT2LMHeadModel,
    PreTrainedModel,
    T5Config,
    T5ForConditionalGeneration,
)

from ..course import save_half
from .vocabulary import LENGTHS, SENTINELS, SIZES

# Special tokens.
IDS: dict[str, dict[str, int]] = {
    "t5": {"pad_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 0},
    "bart": {"bos_token_id": 0, "pad_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 2},
    "gpt2": dict.fromkeys(("bos_token_id", "eos_token_id"), SIZES["gpt2"] - 1),
}
# Dropout is off: no text is seen often enough to be learnt by heart.
SHAPES: dict[str, dict[str, Any]] = {
    "t5": {
        "vocab_size": SIZES["t5"] + SENTINELS,
        "d_model": 192,
        "d_kv": 32,
        "num_heads": 6,
        "d_ff": 512,
        "num_layers": 4,
        "num_decoder_layers": 4,
        "feed_forward_proj": "relu",
        "tie_word_embeddings": True,
        "n_positions": LENGTHS["t5"],
        "dropout_rate": 0.0,
        **IDS["t5"],
    },
    "bart": {
        "vocab_size": SIZES["bart"],
        "d_model": 192,
        "encoder_layers": 3,
        "decoder_layers": 3,
        "encoder_attention_heads": 6,
        "decoder_attention_heads": 6,
        "encoder_ffn_dim": 768,
        "decoder_ffn_dim": 768,
        "max_position_embeddings": LENGTHS["bart"],
        **dict.fromkeys(("dropout", "attention_dropout", "activation_dropout"), 0.0),
        **IDS["bart"],
    },
    "gpt2": {
        "vocab_size": SIZES["gpt2"],
        "n_embd": 192,
        "n_layer": 6,
        "n_head": 6,
        "n_positions": LENGTHS["gpt2"],
        **dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0),
        **IDS["gpt2"],
    },
}
GENERATION: dict[str, dict[str, Any]] = {
    "t5": {**IDS["t5"], "max_length": 128},
    "bart": {**IDS["bart"], "forced_bos_token_id": 0, "forced_eos_token_id": 2, "max_length": 160},
    "gpt2": {**IDS["gpt2"], "max_length": 256},
}
CLASSES: dict[str, tuple[type, type]] = {
    "t5": (T5Config, T5ForConditionalGeneration),
    "bart": (BartConfig, BartForConditionalGeneration),
    "gpt2": (GPT2Config, GPT2LMHeadModel),
}
IGNORED = -100


def new_model(name: str) -> PreTrainedModel:
    """A miniature before training."""
    configuration, architecture = CLASSES[name]
    return architecture(configuration(**SHAPES[name]))


def save_weights(model: PreTrainedModel, name: str, folder: Path) -> None:
    """Write config, generation config and fp16 safetensors."""
    model.generation_config = GenerationConfig(**GENERATION[name])
    save_half(model, folder)


def pair_loss(model: PreTrainedModel, source: Tensor, target: Tensor) -> Tensor:
    """Cross-entropy of targets [batch, length] after sources [batch, width], both padded with the model's pad
    token.
    """
    pad, start = model.config.pad_token_id, model.config.decoder_start_token_id
    given = F.pad(target[:, :-1], (1, 0), value=start)
    logits = model(
        input_ids=source, attention_mask=source != pad, decoder_input_ids=given, use_cache=False
    ).logits
    wanted = target.masked_fill(target == pad, IGNORED).flatten()
    return F.cross_entropy(logits.float().flatten(0, 1), wanted, ignore_index=IGNORED)


def text_loss(model: PreTrainedModel, ids: Tensor) -> Tensor:
    """Cross-entropy of each token of running text [batch, length + 1] after those before it."""
    logits = model(input_ids=ids[:, :-1], use_cache=False).logits
    return F.cross_entropy(logits.float().flatten(0, 1), ids[:, 1:].flatten())
