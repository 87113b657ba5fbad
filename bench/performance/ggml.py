"""Convert Whisper's weights for whisper.cpp, a peer in the benchmarks.

Format: https://github.com/ggml-org/whisper.cpp/blob/v1.8.4/models/convert-pt-to-ggml.py: a magic number,
eleven sizes, mel filters, the vocabulary, and tensors under OpenAI's names; matrices in float16.
"""

from __future__ import annotations

import base64
import json
import re
import struct
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file

from serving.audio.log_mel import mel_filters

MAGIC, FLOAT32, FLOAT16 = 0x67676D6C, 0, 1
# Hugging Face's names to OpenAI's, one after the other.
NAMES = (
    (r"^model\.", ""),
    (r"\.layers\.", ".blocks."),
    (r"self_attn_layer_norm", "attn_ln"),
    (r"encoder_attn_layer_norm", "cross_attn_ln"),
    (r"self_attn", "attn"),
    (r"encoder_attn", "cross_attn"),
    (r"([qkv])_proj", lambda found: {"q": "query", "k": "key", "v": "value"}[found[1]]),
    (r"out_proj", "out"),
    (r"fc1", "mlp.0"),
    (r"fc2", "mlp.2"),
    (r"final_layer_norm", "mlp_ln"),
    (r"^encoder\.layer_norm", "encoder.ln_post"),
    (r"^decoder\.layer_norm", "decoder.ln"),
    (r"embed_positions\.weight", "positional_embedding"),
    (r"embed_tokens", "token_embedding"),
)


def openai_name(name: str) -> str:
    """Return a tensor's name in OpenAI's checkpoints."""
    for pattern, by in NAMES:
        name = re.sub(pattern, by, name)
    return name


def _integers(file: BinaryIO, *values: int) -> None:
    file.write(struct.pack(f"<{len(values)}i", *values))


def _tensor(file: BinaryIO, name: str, data: NDArray[np.float32]) -> None:
    if name in ("encoder.conv1.bias", "encoder.conv2.bias"):
        data = data[:, None]
    half = data.ndim > 1 and "positional" not in name and not name.endswith(".bias")
    _integers(file, data.ndim, len(name), FLOAT16 if half else FLOAT32, *reversed(data.shape))
    file.write(name.encode() + data.astype(np.float16 if half else np.float32).tobytes())


def convert(folder: Path, vocabulary: Path, output: Path) -> None:
    """Write whisper.cpp's file from a folder in Hugging Face layout. `vocabulary` is OpenAI's, one line per
    token: base64 and rank.
    """
    config = json.loads((folder / "config.json").read_text("utf-8"))
    tokens = [base64.b64decode(line.split()[0]) for line in vocabulary.read_bytes().splitlines() if line]
    filters = np.ascontiguousarray(mel_filters(config["num_mel_bins"]).T)
    with output.open("wb") as file:
        _integers(file, MAGIC, config["vocab_size"])
        for side, positions in (("encoder", "max_source_positions"), ("decoder", "max_target_positions")):
            heads, layers = config[f"{side}_attention_heads"], config[f"{side}_layers"]
            _integers(file, config[positions], config["d_model"], heads, layers)
        _integers(file, config["num_mel_bins"], FLOAT16, *filters.shape)
        file.write(filters.tobytes())
        _integers(file, len(tokens))
        for token in tokens:
            _integers(file, len(token))
            file.write(token)
        for name, data in load_file(folder / "model.safetensors").items():
            if not name.startswith("proj_out"):
                _tensor(file, openai_name(name), data.astype(np.float32))
