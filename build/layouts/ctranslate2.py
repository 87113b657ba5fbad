"""Convert a Whisper in CTranslate2's layout, which faster-whisper uses, to Hugging Face's: `python -m
build.layouts.ctranslate2 --from … --to …`.

`model.bin` (OpenNMT/CTranslate2 src/models/model.cc, `Model::load`; little endian): u32 version,
specification, u32 revision, u32 count of variables, each a name, u8 rank, u32 sizes, u8 data type, u32 bytes,
data; then u32 count of aliases, each two names. A name is a u16 length and that many bytes, the last of them
zero. Names of variables: python/ctranslate2/specs/whisper_spec.py.
"""

from __future__ import annotations

import argparse
import json
import re
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import torch
from tokenizers import Tokenizer
from torch import Tensor

from build.layouts.whisper import write_huggingface

TYPES = {0: torch.float32, 1: torch.int8, 2: torch.int16, 3: torch.int32, 4: torch.float16, 5: torch.bfloat16}
VERSION = 6
# CTranslate2's part of a layer's name, OpenAI's; a name that holds several tensors in one, theirs in that
# order.
LAYER = (
    ("self_attention/layer_norm", ("attn_ln",)),
    ("self_attention/linear_0", ("attn.query", "attn.key", "attn.value")),
    ("self_attention/linear_1", ("attn.out",)),
    ("attention/layer_norm", ("cross_attn_ln",)),
    ("attention/linear_0", ("cross_attn.query",)),
    ("attention/linear_1", ("cross_attn.key", "cross_attn.value")),
    ("attention/linear_2", ("cross_attn.out",)),
    ("ffn/layer_norm", ("mlp_ln",)),
    ("ffn/linear_0", ("mlp.0",)),
    ("ffn/linear_1", ("mlp.2",)),
)
OUTSIDE = {
    "encoder/conv1": "encoder.conv1",
    "encoder/conv2": "encoder.conv2",
    "encoder/layer_norm": "encoder.ln_post",
    "decoder/layer_norm": "decoder.ln",
    "decoder/embeddings": "decoder.token_embedding",
    "encoder/position_encodings": "encoder.positional_embedding",
    "decoder/position_encodings": "decoder.positional_embedding",
}
KIND = {"gamma": "weight", "beta": "bias", "weight": "weight", "bias": "bias"}


class BadCheckpoint(ValueError):
    """model.bin is damaged, of another version, or not a Whisper."""


def read(path: Path) -> dict[str, Tensor]:
    """Read all variables of a model.bin as stored; an alias is resolved to its variable.

    Raises:
        BadCheckpoint: it is not a Whisper of version 6, or it ends too early.
    """
    try:
        with path.open("rb") as file:
            version, kind, _ = _number(file, "I"), _name(file), _number(file, "I")
            if (version, kind) != (VERSION, "WhisperSpec"):
                raise BadCheckpoint(
                    f"{path}: {kind} in format {version}; only WhisperSpec in format {VERSION} can be read, "
                    "so convert the model again"
                )
            variables = dict(_variable(file) for _ in range(_number(file, "I")))
            for _ in range(_number(file, "I")):
                alias, name = _name(file), _name(file)
                variables[alias] = variables[name]
    except (struct.error, KeyError, RuntimeError, UnicodeDecodeError) as error:
        raise BadCheckpoint(f"{path} is damaged: {error}; fetch it again") from error
    return variables


def _number(file: BinaryIO, kind: str) -> int:
    return int(struct.unpack(f"<{kind}", file.read(struct.calcsize(f"<{kind}")))[0])


def _name(file: BinaryIO) -> str:
    return file.read(_number(file, "H")).rstrip(b"\0").decode()


def _variable(file: BinaryIO) -> tuple[str, Tensor]:
    name, rank = _name(file), _number(file, "B")
    shape = [_number(file, "I") for _ in range(rank)]
    kind, data = TYPES[_number(file, "B")], bytearray(file.read(_number(file, "I")))
    return name, torch.frombuffer(data, dtype=kind).reshape(shape)


def _dense(variables: Mapping[str, Tensor], name: str) -> Tensor:
    """Return weights in half precision. Quantized weights come with their scales, one for each row or one for
    all (layers/common.cc, `Dense`).
    """
    tensor, scale = variables[name], variables.get(f"{name}_scale")
    if scale is None:
        return tensor.half()
    return (tensor.float() / scale.float().reshape(-1, *[1] * (tensor.dim() - 1))).half()


def state_of(variables: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors under OpenAI's names. OpenAI's keys have no bias; CTranslate2 writes zeros.

    Raises:
        BadCheckpoint: a variable that Whisper does not have.
    """
    state: dict[str, Tensor] = {}
    for name in variables:
        place, _, last = name.rpartition("/")
        if last == "encodings":
            state[OUTSIDE[place]] = _dense(variables, name)
        elif last in KIND and name != "decoder/projection/weight":
            names = _names(place)
            for ours, tensor in zip(names, _dense(variables, name).chunk(len(names)), strict=True):
                if not (ours.endswith(".key") and last == "bias"):
                    state[f"{ours}.{KIND[last]}"] = tensor
    return state


def _names(place: str) -> tuple[str, ...]:
    if place in OUTSIDE:
        return (OUTSIDE[place],)
    match = re.fullmatch(r"(encoder|decoder)/layer_(\d+)/(.+)", place)
    parts = dict(LAYER).get(match[3]) if match else None
    if match is None or parts is None:
        raise BadCheckpoint(f"{place} is not a part of Whisper")
    return tuple(f"{match[1]}.blocks.{match[2]}.{part}" for part in parts)


def dims_of(state: Mapping[str, Tensor], heads: int) -> dict[str, int]:
    """Return OpenAI's dims; `heads` of encoder and decoder are equal in every Whisper."""
    layers = {
        side: 1 + max(int(name.split(".")[2]) for name in state if name.startswith(f"{side}.blocks."))
        for side in ("encoder", "decoder")
    }
    vocabulary, width = state["decoder.token_embedding.weight"].shape
    return {
        "n_mels": state["encoder.conv1.weight"].shape[1],
        "n_vocab": vocabulary,
        "n_audio_ctx": len(state["encoder.positional_embedding"]),
        "n_audio_state": width,
        "n_audio_head": heads,
        "n_audio_layer": layers["encoder"],
        "n_text_ctx": len(state["decoder.positional_embedding"]),
        "n_text_state": width,
        "n_text_head": heads,
        "n_text_layer": layers["decoder"],
    }


def convert(source: Path, target: Path, model_name: str) -> None:
    """Convert a CTranslate2 folder into a Hugging Face one."""
    variables = read(source / "model.bin")
    state = state_of(variables)
    settings, vocabulary = source / "config.json", source / "tokenizer.json"
    config: dict[str, Any] = json.loads(settings.read_text("utf-8")) if settings.exists() else {}
    heads = variables.get("encoder/num_heads")
    width = state["decoder.token_embedding.weight"].shape[1]
    checkpoint = {
        "dims": dims_of(state, width // 64 if heads is None else int(heads)),
        "model_state_dict": state,
    }
    write_huggingface(
        checkpoint,
        target,
        model_name,
        tokenizer=Tokenizer.from_file(str(vocabulary)) if vocabulary.exists() else None,
        suppress=[token for token in (config.get("suppress_ids") or []) if token >= 0],
        heads=config.get("alignment_heads"),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--from", dest="source", type=Path, required=True)
    parser.add_argument("--to", type=Path, required=True)
    parser.add_argument(
        "--model-name",
        default="",
        help="OpenAI's name of the model, which decides about alignment heads where config.json has none",
    )
    arguments = parser.parse_args()
    convert(arguments.source, arguments.to, arguments.model_name)


if __name__ == "__main__":
    main()
