"""The miniature's shape, its encoder for any window length, and its folder in Hugging Face layout."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import (
    GenerationConfig,
    WhisperFeatureExtractor,
    WhisperForConditionalGeneration,
    WhisperTokenizer,
)

from build.whisper_vocabulary import LANGUAGES, special_tokens, whisper_tokenizer

from ..course import save_half

SPECIAL = {name: 50257 + i for i, name in enumerate(special_tokens(99))}
IDS: dict[str, Any] = {
    **dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"), 50257),
    "decoder_start_token_id": 50258,
    "begin_suppress_tokens": [220],
}
CONFIG: dict[str, Any] = {
    "vocab_size": 51865,
    "num_mel_bins": 80,
    "d_model": 96,
    "encoder_layers": 8,
    "decoder_layers": 4,
    "encoder_attention_heads": 3,
    "decoder_attention_heads": 3,
    "encoder_ffn_dim": 384,
    "decoder_ffn_dim": 384,
    "max_source_positions": 1500,
    "max_target_positions": 448,
    "dropout": 0.0,
    "suppress_tokens": [],
    **IDS,
}


def encode(encoder: torch.nn.Module, features: Tensor) -> Tensor:
    """Whisper's encoder for any even number of frames: [batch, mels, frames] -> [batch, frames / 2, width].

    transformers' own forward insists on 3,000 frames; the arithmetic below is the same with the position
    table cut to length.
    """
    x = F.gelu(encoder.conv2(F.gelu(encoder.conv1(features)))).permute(0, 2, 1)
    x = x + encoder.embed_positions.weight[: x.shape[1]]
    for layer in encoder.layers:
        x = layer(x, None)
    return encoder.layer_norm(x)


def save_weights(model: WhisperForConditionalGeneration, folder: Path) -> None:
    """Write config, generation config and fp16 safetensors."""
    model.generation_config = GenerationConfig(
        **IDS,
        max_length=448,
        is_multilingual=True,
        no_timestamps_token_id=SPECIAL["<|notimestamps|>"],
        prev_sot_token_id=SPECIAL["<|startofprev|>"],
        max_initial_timestamp_index=50,
        return_timestamps=False,
        task_to_id={task: SPECIAL[f"<|{task}|>"] for task in ("transcribe", "translate")},
        lang_to_id={f"<|{code}|>": SPECIAL[f"<|{code}|>"] for code in LANGUAGES[:99]},
    )
    save_half(model, folder)


def save_checkpoint(model: WhisperForConditionalGeneration, folder: Path) -> None:
    """Write what `save_weights` writes, the tokenizer and the preprocessor config."""
    folder.mkdir(parents=True, exist_ok=True)
    save_weights(model, folder)
    WhisperFeatureExtractor(feature_size=80).save_pretrained(folder)
    raw = folder / "tokenizer.json"
    whisper_tokenizer(99).save(str(raw))
    vocabulary = json.loads(raw.read_text("utf-8"))["model"]
    (folder / "vocab.json").write_text(json.dumps(vocabulary["vocab"], ensure_ascii=False), "utf-8")
    (folder / "merges.txt").write_text(
        "#version: 0.2\n" + "\n".join(" ".join(pair) for pair in vocabulary["merges"]) + "\n", "utf-8"
    )
    WhisperTokenizer.from_pretrained(folder).save_pretrained(folder)
