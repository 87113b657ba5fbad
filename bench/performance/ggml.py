"""Convert Whisper's weights for whisper.cpp, a peer in the benchmarks.

Format: https://github.com/ggml-org/whisper.cpp/blob/v1.8.4/models/convert-pt-to-ggml.py: a magic number,
eleven sizes, mel filters, the vocabulary, and tensors under OpenAI's names; matrices in float16.
"""

from __future__ import annotations

import base64
import json
import struct
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file

from build.layouts.whisper import to_openai
from serving.audio.log_mel import mel_filters

MAGIC, FLOAT32, FLOAT16 = 0x67676D6C, 0, 1


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
                _tensor(file, to_openai(name), data.astype(np.float32))
