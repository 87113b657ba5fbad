"""Stand-ins for TensorRT-LLM's tools: they take exactly the options of cli_options.json and write folders of
the real shape.

An unknown option, a value outside the choices or a missing value ends with status 2, as argparse does it
there. Abbreviations, which the real ones take, are refused.
"""

from __future__ import annotations

import argparse
import configparser
import io
import json
import os
import pickle
import zipfile
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

OPTIONS: dict[str, dict[str, dict[str, Any]]] = json.loads(
    (Path(__file__).parent.parent / "contract" / "cli_options.json").read_text("utf-8")
)
TYPES = {"int": int, "float": float, "str": str, "enum": str}
VERSION = "0.20.0"


def parser_of(tool: str) -> argparse.ArgumentParser:
    """The tool's command line."""
    parser = argparse.ArgumentParser(prog=tool, allow_abbrev=False)
    for name, row in OPTIONS[tool].items():
        default = (
            None if isinstance(row["default"], str) and row["type"] != "str" else row["default"]
        )  # of names that no command line can say
        extra: dict[str, Any] = (
            {"action": "store_true"}
            if row["type"] == "flag"
            else {"type": TYPES[row["type"]], "default": default}
        )
        if isinstance(row["choices"], list):
            extra["choices"] = row["choices"]
        extra |= {key: row[key] for key in ("nargs", "const") if key in row}
        if row.get("required"):
            extra["required"] = True
        parser.add_argument(name, *row.get("aliases", []), **extra)
    return parser


def write_json(path: Path, data: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(data, indent=2), "utf-8")


def checkpoint(folder: Path, config: dict[str, Any], world_size: int = 1, tp_size: int = 1) -> None:
    """A TensorRT-LLM checkpoint: config.json and the weights of each rank."""
    mapping = {"world_size": world_size, "tp_size": tp_size, "pp_size": world_size // tp_size}
    write_json(folder / "config.json", {**config, "mapping": mapping})
    for rank in range(world_size):
        (folder / f"rank{rank}.safetensors").write_bytes(b"weights")


class Header(pickle.Unpickler):
    """What stands in a .pt besides tensors, without waiting for torch."""

    def find_class(self, module: str, name: str) -> Any:
        return OrderedDict if name == "OrderedDict" else lambda *_: None

    def persistent_load(self, pid: Any) -> None:
        return None


def dims_of(path: Path) -> dict[str, int]:
    with zipfile.ZipFile(path) as archive:
        name = next(name for name in archive.namelist() if name.endswith("data.pkl"))
        return dict(Header(io.BytesIO(archive.read(name))).load()["dims"])


def convert_whisper(given: argparse.Namespace) -> None:
    path = Path(given.model_dir) / f"{given.model_name}.pt"
    assert path.exists(), f"Model {path} does not exist."
    dims = dims_of(path)
    shared = {
        "dtype": given.dtype,
        "vocab_size": dims["n_vocab"],
        "quantization": {"quant_algo": quantised(given)},
    }
    languages = dims["n_vocab"] - 51765 - int(dims["n_vocab"] >= 51865)
    encoder = {
        "architecture": "WhisperEncoder",
        "n_mels": dims["n_mels"],
        "num_languages": languages,
        "max_position_embeddings": dims["n_audio_ctx"],
    }
    decoder = {
        "architecture": "DecoderModel",
        "model_type": "whisper",
        "logits_dtype": given.logits_dtype,
        "max_position_embeddings": dims["n_text_ctx"],
    }
    checkpoint(
        Path(given.output_dir) / "encoder", {**shared, **encoder, "hidden_size": dims["n_audio_state"]}
    )
    checkpoint(Path(given.output_dir) / "decoder", {**shared, **decoder, "hidden_size": dims["n_text_state"]})


def convert_distil(given: argparse.Namespace) -> None:
    config = json.loads((Path(given.model_name) / "config.json").read_text("utf-8"))
    dims = {
        "n_mels": config["num_mel_bins"],
        "n_vocab": config["vocab_size"],
        "n_audio_ctx": config["max_source_positions"],
        "n_audio_state": config["d_model"],
        "n_audio_head": config["encoder_attention_heads"],
        "n_audio_layer": config["encoder_layers"],
        "n_text_ctx": config["max_target_positions"],
        "n_text_state": config["d_model"],
        "n_text_head": config["decoder_attention_heads"],
        "n_text_layer": config["decoder_layers"],
    }
    Path(given.output_dir).mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(Path(given.output_dir) / f"{given.output_name}.pt", "w") as archive:
        archive.writestr("archive/data.pkl", pickle.dumps({"dims": dims, "model_state_dict": {}}))


def quantised(given: argparse.Namespace) -> str | None:
    return {"int8": "W8A16", "int4": "W4A16"}[given.weight_only_precision] if given.use_weight_only else None


def asked(source: dict[str, Any], given: argparse.Namespace) -> None:
    """What the converters ask of config.json without a default: enc_dec/convert_checkpoint.py
    (`parse_bart_config_by_component`, `parse_t5_config_by_component`), tensorrt_llm/models/llama/config.py
    (`from_hugging_face`). Defaults of transformers' classes are filled in before; these are not among them.
    """
    if getattr(given, "model_type", "") == "bart" and "normalize_before" not in source:
        raise configparser.NoOptionError("normalize_before", "encoder")
    if source.get("model_type") == "llava":
        source["text_config"]["architectures"][0]  # a KeyError here is upstream's TypeError


def convert_text(given: argparse.Namespace) -> None:
    """enc_dec, opt, llama and gpt: Hugging Face's folder becomes one checkpoint, or one for each half."""
    source = json.loads((Path(given.model_dir) / "config.json").read_text("utf-8"))
    asked(source, given)
    text = {**source, **source.get("text_config", {})}
    width = next(int(text[key]) for key in ("d_model", "n_embd", "hidden_size") if key in text)
    cache = (
        "INT8"
        if getattr(given, "int8_kv_cache", False)
        else "FP8"
        if getattr(given, "fp8_kv_cache", False)
        else None
    )
    config = {
        "dtype": given.dtype,
        "vocab_size": text["vocab_size"],
        "hidden_size": width,
        "logits_dtype": "float32",
        "quantization": {"quant_algo": quantised(given), "kv_cache_quant_algo": cache},
    }
    world = given.tp_size * given.pp_size
    halves = ("encoder", "decoder") if source.get("is_encoder_decoder") or "eclair_radio" in given else ("",)
    for half in halves:
        checkpoint(Path(given.output_dir) / half, config, world, given.tp_size)


def quantize(given: argparse.Namespace) -> None:
    """examples/quantization/quantize.py: a checkpoint whose weights, and cache if requested, are
    quantised.
    """
    given.use_weight_only, given.fp8_kv_cache = False, given.kv_cache_dtype == "fp8"
    convert_text(given)
    path = Path(given.output_dir) / "config.json"
    config = json.loads(path.read_text("utf-8"))
    config["quantization"]["quant_algo"] = given.qformat.upper()
    write_json(path, config)


def build(given: argparse.Namespace) -> None:
    """trtllm-build: one engine for each rank, and what it was told. It says which GPUs it sees."""
    print(f"CUDA_VISIBLE_DEVICES={os.environ.get('CUDA_VISIBLE_DEVICES')}")
    pretrained = json.loads((Path(given.checkpoint_dir) / "config.json").read_text("utf-8"))
    kept = (
        "max_batch_size",
        "max_input_len",
        "max_seq_len",
        "max_beam_width",
        "max_num_tokens",
        "max_encoder_input_len",
        "max_prompt_embedding_table_size",
        "gather_generation_logits",
    )
    told = {name: getattr(given, name) for name in kept}
    told["max_seq_len"] = told["max_seq_len"] or pretrained.get(
        "max_position_embeddings", told["max_input_len"]
    )
    told["kv_cache_type"] = (given.kv_cache_type or "paged").upper()
    output = Path(given.output_dir)
    write_json(
        output / "config.json", {"version": VERSION, "pretrained_config": pretrained, "build_config": told}
    )
    for rank in range(pretrained["mapping"]["world_size"]):
        (output / f"rank{rank}.engine").write_bytes(b"engine")
    Path(given.output_timing_cache).write_bytes(b"timings")


def blip2_kind(source: dict[str, Any]) -> str:
    """Of the language model that text_config names, which upstream asks without a default."""
    import transformers

    if transformers.Blip2ForConditionalGeneration._keep_in_fp32_modules:
        raise RuntimeError("mat1 and mat2 must have the same dtype, but got Float and Half")
    kinds = {"T5ForConditionalGeneration": "t5", "OPTForCausalLM": "opt"}
    return f"blip2-{kinds[source['text_config']['architectures'][0]]}"


def build_vision(given: argparse.Namespace) -> None:
    """tensorrt_llm/tools/multimodal_builder.py: LLaVA's summary is always left out, BLIP-2's type names the
    language model, and its Q-Former must be in half precision as the projection is. The plan says its
    tensors, for tests/fakes/tensorrt_image.
    """
    source = json.loads((Path(given.model_path) / "config.json").read_text("utf-8"))
    vision = {"image_size": 224, "patch_size": 32, **source.get("vision_config", {})}
    size = vision["image_size"]
    rows = source.get("num_query_tokens", 32)
    if given.model_type == "llava":
        rows = (size // vision["patch_size"]) ** 2
    kind = blip2_kind(source) if given.model_type == "blip2" else given.model_type
    output, shape = Path(given.output_dir), [-1, rows, source["text_config"].get("hidden_size", 4096)]
    config = {"precision": "float16", "model_type": kind, "max_batch_size": given.max_batch_size}
    write_json(output / "config.json", {"builder_config": {**config, "output_shape": shape}})
    plan = {"input": [-1, 3, size, size], "encoder_output": shape, "max_batch_size": given.max_batch_size}
    write_json(output / "model.engine", plan)


TOOLS: dict[str, Callable[[argparse.Namespace], None]] = {
    "trtllm-build": build,
    "examples/models/core/whisper/convert_checkpoint.py": convert_whisper,
    "examples/models/core/whisper/distil_whisper/convert_from_distil_whisper.py": convert_distil,
    "examples/models/core/enc_dec/convert_checkpoint.py": convert_text,
    "examples/models/contrib/opt/convert_checkpoint.py": convert_text,
    "examples/models/core/llama/convert_checkpoint.py": convert_text,
    "examples/models/core/gpt/convert_checkpoint.py": convert_text,
    "examples/quantization/quantize.py": quantize,
    "examples/models/core/multimodal/build_multimodal_engine.py": build_vision,
}


def main(tool: str) -> None:
    """Parse, and do."""
    given = parser_of(tool).parse_args()
    TOOLS[tool](given)
