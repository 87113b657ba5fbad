"""Weights of a model that are right in form and next to nothing in size, as a hub or a web server would hold
them.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from build.catalog import Model
from tests.fakes.hub import serving

# mels, vocabulary: of the model cards.
SHAPES = {"large-v3": (128, 51866), "large-v3-turbo": (128, 51866), "distil-large-v3": (128, 51866)}
TEXT: dict[str, dict[str, Any]] = {
    "t5": {
        "is_encoder_decoder": True,
        "d_model": 512,
        "vocab_size": 32128,
        "eos_token_id": 1,
        "pad_token_id": 0,
        "decoder_start_token_id": 0,
    },
    "bart": {
        "is_encoder_decoder": True,
        "d_model": 1024,
        "vocab_size": 50264,
        "eos_token_id": 2,
        "pad_token_id": 1,
        "decoder_start_token_id": 2,
        "forced_bos_token_id": 0,
        "normalize_before": False,
    },
    "gpt2": {"n_embd": 1024, "vocab_size": 50257, "eos_token_id": 50256},
    "blip2": {
        "text_config": {
            "architectures": ["OPTForCausalLM"],
            "hidden_size": 2560,
            "vocab_size": 50272,
            "eos_token_id": 50118,
        },
        "image_token_index": 50265,
    },
    "llava": {
        "model_type": "llava",
        "text_config": {
            "architectures": ["LlamaForCausalLM"],
            "hidden_size": 4096,
            "vocab_size": 32064,
            "eos_token_id": 2,
            "pad_token_id": 32001,
        },
        "vision_config": {"image_size": 336, "patch_size": 14},
        "image_token_index": 32000,
    },
}


LOOKS: dict[str, dict[str, Any]] = {
    "blip2": {"size": {"height": 224, "width": 224}},
    "llava": {"size": {"shortest_edge": 336}, "crop_size": {"height": 336, "width": 336}},
}


def dims(model: Model) -> dict[str, int]:
    mels, vocabulary = SHAPES.get(model.id, (80, 51865))
    sizes = {
        "n_audio_state": 8,
        "n_audio_head": 2,
        "n_audio_layer": 1,
        "n_text_state": 8,
        "n_text_head": 2,
        "n_text_layer": 1,
    }
    return {"n_mels": mels, "n_vocab": vocabulary, "n_audio_ctx": 1500, "n_text_ctx": 448, **sizes}


def openai(model: Model) -> bytes:
    import torch

    file = io.BytesIO()
    torch.save({"dims": dims(model), "model_state_dict": {"decoder.ln.weight": torch.ones(8)}}, file)
    return file.getvalue()


def huggingface(model: Model) -> dict[str, bytes]:
    """Configuration, tokenizer and weights; the numbers mean nothing."""
    from tokenizers import Tokenizer, models

    from build.layouts.whisper import config_of

    config = config_of(dims(model)) if model.family == "whisper" else TEXT[model.family]
    tokenizer = Tokenizer(models.WordLevel({"<unk>": 0}, "<unk>")).to_str()
    files = {
        "config.json": json.dumps(config),
        "generation_config.json": json.dumps({"suppress_tokens": [1, 2]}),
        "tokenizer.json": tokenizer,
    }
    if model.family in LOOKS:
        look = {**LOOKS[model.family], "image_mean": [0.5, 0.5, 0.5], "image_std": [0.3, 0.3, 0.3]}
        files["preprocessor_config.json"] = json.dumps(look)
    return {
        **{name: text.encode() for name, text in files.items()},
        "model.safetensors": (2).to_bytes(8, "little") + b"{}",
        "README.md": b"not wanted",
        "model.fp32-00001-of-00002.safetensors": b"not wanted",
        "flax_model.msgpack": b"neither",
    }


def checkpoint() -> dict[str, bytes]:
    """What the converter made: two halves."""
    mapping = {
        "mapping": {"world_size": 1, "tp_size": 1, "pp_size": 1},
        "vocab_size": 51865,
        "hidden_size": 1280,
    }
    encoder, decoder = (
        {**mapping, "n_mels": 80, "max_position_embeddings": 1500},
        {**mapping, "max_position_embeddings": 448},
    )
    rows = {"encoder": encoder, "decoder": decoder}
    return {
        f"{half}/{name}": body
        for half, row in rows.items()
        for name, body in (("config.json", json.dumps(row).encode()), ("rank0.safetensors", b"weights"))
    }


@contextmanager
def published(model: Model) -> Iterator[tuple[Model, str]]:
    """The model with small weights after its source, and the hub's address; what lies in this repository
    stays as it is.
    """
    blob, kind = b"", model.source.partition(":")[0]
    files: dict[str, bytes] = {}
    if model.layout == "openai":
        blob = openai(model)
        files = {model.file: blob, "other.pt": b"not wanted"}
    elif kind == "hf":
        files = checkpoint() if model.layout == "checkpoint" else huggingface(model)
    with serving({model.source.removeprefix("hf:"): files}, blob) as hub:
        if kind == "https":
            model = replace(
                model,
                source=f"{hub.url}/{model.source.rsplit('/', 1)[-1]}",
                sha256=hashlib.sha256(blob).hexdigest(),
            )
        yield model, hub.url
