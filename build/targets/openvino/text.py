"""The command line and the files that exporters of text models share."""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import openvino as ov
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedModel

from conch.bundle import EngineFacts

from .stateful import compress_int8


@dataclass(frozen=True)
class Arguments:
    """What the builder says: where from, where to, weights of 8 bits or not, the seed of random weights, and
    the longest input and output.
    """

    weights: str
    output: Path
    compress: str
    seed: int
    max_input_len: int
    max_seq_len: int


def parse(description: str) -> Arguments:
    """The command line."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument(
        "--weights", required=True, help="a folder in Hugging Face layout, or random:<architecture>"
    )
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--compress", choices=["none", "int8"], default="none")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--max-input-len", type=int, default=1024, help="longest input of an encoder, in tokens"
    )
    parser.add_argument(
        "--max-seq-len", type=int, default=1024, help="longest output, a decoder's prompt included, in tokens"
    )
    return Arguments(**vars(parser.parse_args()))


def export_text(
    description: str | None,
    architecture: type[PreTrainedModel],
    random_model: Callable[[str], PreTrainedModel],
    graphs: Callable[[Any, Path, Arguments], dict[str, ov.Model]],
    facts: Callable[[Any, Arguments], EngineFacts],
) -> None:
    """Write encoder.xml (if there is one), decoder.xml, engine.json and the tokenizer's files."""
    arguments = parse(description or "")
    torch.set_grad_enabled(False)
    kind, _, name = arguments.weights.partition("random:")
    torch.manual_seed(arguments.seed)
    model: Any = random_model(name) if name else architecture.from_pretrained(kind, dtype=torch.float32)
    model.eval()
    for file, graph in graphs(model, arguments.output, arguments).items():
        if arguments.compress == "int8" and file == "decoder":
            compress_int8(graph)
        ov.save_model(
            graph, arguments.output / f"{file}.xml", compress_to_fp16=not name and _stored_in_half(Path(kind))
        )
    for file in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        if not name and (Path(kind) / file).exists():
            shutil.copy(Path(kind) / file, arguments.output / file)
    if name:
        numbered_tokenizer(model.config.vocab_size).save(str(arguments.output / "tokenizer.json"))
    facts(model, arguments).save(arguments.output)


def numbered_tokenizer(vocabulary: int) -> Tokenizer:
    """For random weights, which have no words: `<0>`, `<1>` and so on, with blanks between them; anything
    else is the last one.
    """
    tokenizer = Tokenizer(
        models.WordLevel({f"<{i}>": i for i in range(vocabulary)}, unk_token=f"<{vocabulary - 1}>")
    )
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return tokenizer


def _stored_in_half(weights: Path) -> bool:
    config = json.loads((weights / "config.json").read_text("utf-8"))
    return str(config.get("dtype", config.get("torch_dtype", "float32"))) == "float16"
