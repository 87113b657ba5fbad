"""Write engine.json and vocabulary of a TensorRT-LLM engine folder for the façades: `python -m
build.targets.trtllm.facts --family … --source … --engine …`.

Numbers come from the config.json that trtllm-build writes next to each engine, so they are the engine's own;
what an engine does not record comes from the fetched weights.
"""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from conch.bundle import EngineFacts

from ...pictures import LOOKS, Unsupported, picture_facts, size_of

Facts = dict[str, Any]
# Families whose positions are learnt, so that the weights have a limit of their own.
PLACES = {"bart": "max_position_embeddings", "gpt2": "n_positions"}
# What TensorRT-LLM's figures mean: log probabilities are those after temperature and
# penalties (penaltyKernels.cu runs before the softmax); without streaming, logits come for every token that
# was allowed (llmRequest.h, `allocGenerationLogitsHost`).
FIGURES: Facts = {"tempered_log_probs": True, "full_logits": True}
# Inputs that the backend reads wrongly (tensorrtllm_backend r25.05, utils.cc and utils.h): four bytes of a
# BOOL of one byte, and one that it looks for by the name runtime_top_k_min, which no template has.
MISREAD: Facts = {"misread": ("early_stopping", "runtime_top_p_min")}
CHAT = "chat_template.jinja"
VOCABULARY = ("tokenizer.json", "tokenizer_config.json", CHAT)


def _read(path: Path) -> Facts:
    return dict(json.loads(path.read_text("utf-8"))) if path.is_file() else {}


def whisper(source: Path, engine: Path) -> Facts:
    """Make facts of a speech model, and its vocabulary if the weights have none."""
    encoder, decoder = (_read(engine / name / "config.json") for name in ("encoder", "decoder"))
    generation, mels = _read(source / "generation_config.json"), encoder["pretrained_config"]["n_mels"]
    vocabulary = int(decoder["pretrained_config"]["vocab_size"])
    if not (source / "tokenizer.json").is_file():
        from ...whisper_vocabulary import languages_of, whisper_tokenizer

        languages, multilingual = languages_of(vocabulary)
        whisper_tokenizer(languages, multilingual=multilingual).save(str(engine / "tokenizer.json"))
    return {
        "mels": mels,
        "encoder_positions": encoder["pretrained_config"]["max_position_embeddings"],
        "positions": decoder["build_config"]["max_seq_len"],
        "vocabulary": vocabulary,
        "end_id": 50257 if vocabulary >= 51865 else 50256,
        "suppress": _suppressed(engine)
        if not generation
        else tuple(sorted(set(generation.get("suppress_tokens") or []))),
    }


def _suppressed(engine: Path) -> tuple[int, ...]:
    from tokenizers import Tokenizer

    from ...whisper_vocabulary import non_speech_ids

    return tuple(non_speech_ids(Tokenizer.from_file(str(engine / "tokenizer.json"))))


def text(source: Path, engine: Path) -> Facts:
    """Make facts of a text model."""
    config, decoder, encoder = (
        _read(source / "config.json"),
        _read(engine / "decoder" / "config.json"),
        _read(engine / "encoder" / "config.json"),
    )
    language = {**_read(source / "generation_config.json"), **config, **config.get("text_config", {})}
    end = language.get("eos_token_id")
    end = end[0] if isinstance(end, list) else end
    limit = int(config.get(PLACES.get(str(config.get("model_type")), ""), 1 << 30))
    facts = {
        "positions": min(decoder["build_config"]["max_seq_len"], limit),
        "vocabulary": decoder["pretrained_config"]["vocab_size"],
        "end_id": end,
        "pad_id": end if language.get("pad_token_id") is None else language["pad_token_id"],
    }
    if encoder:
        facts |= {
            "encoder_positions": min(encoder["build_config"]["max_input_len"], limit),
            "decoder_start": _decoder_start(source, config),
        }
    return facts


def _decoder_start(source: Path, config: Facts) -> tuple[int, ...]:
    """Return the decoder's first ids: the start token, and the one that is always generated first (BART),
    which an engine cannot be configured with.
    """
    forced = _read(source / "generation_config.json").get(
        "forced_bos_token_id", config.get("forced_bos_token_id")
    )
    return (config["decoder_start_token_id"], *(() if forced is None else (forced,)))


def pictures(family: str, source: Path, engine: Path) -> Facts:
    """Make facts of a model that reads text and rows of a prompt table, and how pictures become those rows.

    Raises:
        Unsupported: TensorRT-LLM cannot read the checkpoint's pictures.
    """
    config, looks = _read(source / "config.json"), LOOKS[family]
    if family == "llava" and config.get("vision_feature_select_strategy") == "full":
        raise Unsupported(
            f"{source}/config.json: vision_feature_select_strategy is full, and TensorRT-LLM's script always "
            "leaves the summary out; use TARGET=torch or TARGET=openvino"
        )
    picture_facts(source, size_of(config), crops=looks.crops).save(engine)
    looks.prompt(config).save(engine)
    if looks.chat:
        (engine / CHAT).unlink(missing_ok=True)
        (engine / CHAT).write_text(looks.chat, "utf-8")
    decoder = _read(engine / "decoder" / "config.json")
    built = decoder["build_config"]
    return {
        **text(source, engine),
        "prompt_width": decoder["pretrained_config"]["hidden_size"],
        "prompt_rows": built["max_prompt_embedding_table_size"] // built["max_batch_size"],
    }


FAMILIES: dict[str, Callable[[Path, Path], Facts]] = {
    "whisper": whisper,
    "t5": text,
    "bart": text,
    "gpt2": text,
    "blip2": partial(pictures, "blip2"),
    "llava": partial(pictures, "llava"),
}


def write(family: str, source: Path, engine: Path) -> None:
    """Write engine.json and the vocabulary's files. Files are replaced, never overwritten in place: the old
    ones may belong to another bundle as well.
    """
    for name in (*VOCABULARY, "engine.json", "picture.json", "picture_prompt.json"):
        (engine / name).unlink(missing_ok=True)
    for name in VOCABULARY:
        if (source / name).is_file():
            shutil.copy(source / name, engine / name)
    EngineFacts(family=family, **FAMILIES[family](source, engine), **FIGURES, **MISREAD).save(engine)


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--family", choices=sorted(FAMILIES), required=True)
    parser.add_argument("--source", type=Path, required=True, help="the weights as fetched")
    parser.add_argument("--engine", type=Path, required=True)
    arguments = parser.parse_args()
    write(arguments.family, arguments.source, arguments.engine)


if __name__ == "__main__":
    main()
