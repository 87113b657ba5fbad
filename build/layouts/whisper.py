"""Convert a Whisper between OpenAI's layout (one .pt file) and Hugging Face's (a folder): `python -m
build.layouts.whisper --from … --to …`.

OpenAI's file holds `dims` and `model_state_dict` (openai/whisper model.py); the folder's names are those of
transformers' modeling_whisper.py. Either way the numbers do not change and are in half precision.
"""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from torch import Tensor

from build.whisper_vocabulary import ALIGNMENT_HEADS, languages_of, non_speech_ids, whisper_tokenizer

# Hugging Face's part of a name, OpenAI's; the longer ones first.
PARTS = (
    ("encoder.embed_positions.weight", "encoder.positional_embedding"),
    ("decoder.embed_positions.weight", "decoder.positional_embedding"),
    ("decoder.embed_tokens", "decoder.token_embedding"),
    ("encoder.layer_norm", "encoder.ln_post"),
    ("decoder.layer_norm", "decoder.ln"),
    (".encoder_attn_layer_norm", ".cross_attn_ln"),
    (".self_attn_layer_norm", ".attn_ln"),
    (".final_layer_norm", ".mlp_ln"),
    (".encoder_attn", ".cross_attn"),
    (".self_attn", ".attn"),
    (".q_proj", ".query"),
    (".k_proj", ".key"),
    (".v_proj", ".value"),
    (".out_proj", ".out"),
    (".fc1", ".mlp.0"),
    (".fc2", ".mlp.2"),
    (".layers.", ".blocks."),
)
# OpenAI's dims, the config's keys.
DIMS = (
    ("n_mels", "num_mel_bins"),
    ("n_vocab", "vocab_size"),
    ("n_audio_ctx", "max_source_positions"),
    ("n_audio_state", "d_model"),
    ("n_audio_head", "encoder_attention_heads"),
    ("n_audio_layer", "encoder_layers"),
    ("n_text_ctx", "max_target_positions"),
    ("n_text_state", "d_model"),
    ("n_text_head", "decoder_attention_heads"),
    ("n_text_layer", "decoder_layers"),
)


def to_openai(name: str) -> str:
    """Return OpenAI's name of a Hugging Face tensor."""
    name = name.removeprefix("model.")
    for theirs, openai in PARTS:
        name = name.replace(theirs, openai)
    return name


def to_huggingface(name: str) -> str:
    """Return Hugging Face's name of an OpenAI tensor. Rules for whole tensors come before rules for parts,
    and no rule matches inside another's.
    """
    name = name.replace(".blocks.", ".layers.")
    for theirs, openai in PARTS[:-1]:
        name = re.sub(rf"{re.escape(openai)}(?=\.|$)", theirs, name)
    return f"model.{name}"


def openai_file(folder: Path) -> dict[str, Any]:
    """Return the contents of OpenAI's .pt for a Hugging Face folder."""
    config = json.loads((folder / "config.json").read_text("utf-8"))
    state: dict[str, Tensor] = {}
    for path in sorted(folder.glob("model*.safetensors")):
        state |= {
            to_openai(name): tensor.half()
            for name, tensor in load_file(path).items()
            if name != "proj_out.weight"
        }
    return {"dims": {ours: config[theirs] for ours, theirs in DIMS}, "model_state_dict": state}


def config_of(dims: dict[str, int]) -> dict[str, Any]:
    """Make config.json from OpenAI's dims. Ids of special tokens follow from the vocabulary size: only `.en`
    models have 51,864.
    """
    end = 50257 if dims["n_vocab"] >= 51865 else 50256
    sizes = {"encoder_ffn_dim": 4 * dims["n_audio_state"], "decoder_ffn_dim": 4 * dims["n_text_state"]}
    ids = {"bos_token_id": end, "eos_token_id": end, "pad_token_id": end, "decoder_start_token_id": end + 1}
    fixed = {
        "model_type": "whisper",
        "architectures": ["WhisperForConditionalGeneration"],
        "is_encoder_decoder": True,
        "dtype": "float16",
    }
    return {**fixed, **{theirs: dims[ours] for ours, theirs in DIMS}, **sizes, **ids}


def write_huggingface(
    checkpoint: dict[str, Any],
    folder: Path,
    model_name: str,
    *,
    tokenizer: Tokenizer | None = None,
    suppress: list[int] | None = None,
    heads: list[list[int]] | None = None,
) -> None:
    """Write a Hugging Face folder from OpenAI's .pt: weights, configuration, suppressed tokens, vocabulary,
    and alignment heads if known. What is not given is made from the vocabulary size and the model's name.
    """
    dims = checkpoint["dims"]
    state = {
        to_huggingface(name): tensor.half().contiguous()
        for name, tensor in checkpoint["model_state_dict"].items()
        if name != "alignment_heads"
    }
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    languages, multilingual = languages_of(dims["n_vocab"])
    tokenizer = tokenizer or whisper_tokenizer(languages, multilingual=multilingual)
    config = config_of(dims)
    heads = heads or ALIGNMENT_HEADS.get(model_name)  # build/checkpoints takes them if all exist
    ids = {
        key: config[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id")
    }
    generation = {
        **ids,
        "suppress_tokens": suppress or non_speech_ids(tokenizer),
        "max_length": dims["n_text_ctx"],
    }
    for name, data in (
        ("config.json", config),
        ("generation_config.json", generation | ({"alignment_heads": heads} if heads else {})),
    ):
        (folder / name).write_text(json.dumps(data, indent=2) + "\n", "utf-8")
    tokenizer.save(str(folder / "tokenizer.json"))


def main() -> None:
    """Convert a folder into a file, or a file into a folder."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--from", dest="source", type=Path, required=True)
    parser.add_argument("--to", type=Path, required=True)
    parser.add_argument(
        "--model-name", default="", help="OpenAI's name of the model, which decides about alignment heads"
    )
    arguments = parser.parse_args()
    if arguments.source.is_dir():
        torch.save(openai_file(arguments.source), arguments.to)
    else:
        write_huggingface(
            torch.load(arguments.source, map_location="cpu", weights_only=True),
            arguments.to,
            arguments.model_name,
        )


if __name__ == "__main__":
    main()
