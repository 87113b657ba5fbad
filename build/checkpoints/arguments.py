"""The command line that exporters share, and the files that accompany every engine."""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, models, pre_tokenizers

from build.pictures import DEVIATION, LOOKS, MEAN, picture_facts, size_of
from build.whisper_vocabulary import whisper_tokenizer
from conch.bundle import EngineFacts, PictureFacts
from serving.architectures.shape import Shape

from . import FAMILIES, copy_tokenizer, encoders, end_ids, family

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Arguments:
    """Options of an exporter: family, source, output, precision of weights, seed of random weights, longest
    input and output.
    """

    family: str
    weights: str
    output: Path
    compress: str
    precision: str
    seed: int
    max_input_len: int
    max_seq_len: int
    chat_template: str = ""

    @property
    def random(self) -> bool:
        """Tell whether the weights are random."""
        return self.weights.startswith("random:")


def options(description: str | None) -> argparse.ArgumentParser:
    """Define the command line."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--family", choices=(*FAMILIES, *encoders.FAMILIES), required=True)
    parser.add_argument(
        "--weights", required=True, help="a folder in Hugging Face layout, or random:<architecture>"
    )
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--compress", choices=["none", "int8", "int4"], default="none")
    parser.add_argument("--precision", choices=["float16", "bfloat16", "float32"], default="float16")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--max-input-len",
        type=int,
        default=1024,
        help="longest input of an encoder, in tokens; for embeddings 0: as the model was trained",
    )
    parser.add_argument(
        "--max-seq-len", type=int, default=1024, help="longest output, a decoder's prompt included, in tokens"
    )
    parser.add_argument("--chat-template", default="", help="a file that takes the checkpoint's place")
    return parser


def parse(description: str | None, line: Sequence[str] | None = None) -> Arguments:
    """Parse the command line, or `line` instead."""
    return Arguments(**vars(options(description).parse_args(line)))


def write_files(arguments: Arguments, theirs: Any, shape: Shape, **own: Any) -> None:
    """Write what accompanies an engine of transformers' model: engine.json, in which `own` is what only the
    target knows, the tokenizer's files and, if it reads pictures, picture.json and picture_prompt.json.
    """
    if shape.prompt_table:
        _write_pictures(arguments, theirs)
    _write_tokenizer(arguments, shape.vocabulary)
    facts = family(arguments.family).facts if shape.encoder_layers else partial(_decoder_facts, shape)
    EngineFacts(
        family=arguments.family,
        layers=shape.decoder_layers,
        heads=shape.cached_heads,
        head_width=shape.head_width,
        vocabulary=shape.vocabulary,
        mels=shape.mels,
        attends=bool(shape.alignment_heads),
        prompt_width=shape.width if shape.prompt_table else 0,
        windows=tuple(map(shape.window_of, range(shape.decoder_layers))) if shape.windowed else (),
        score_cap=shape.score_cap,
        **facts(theirs, arguments),
        **own,
    ).save(arguments.output)


def _decoder_facts(shape: Shape, theirs: Any, arguments: Arguments) -> dict[str, Any]:
    """Return the positions and ids of a decoder alone. Without a padding token, its end token is used."""
    (end, *others), pad = end_ids(theirs), theirs.config.get_text_config().pad_token_id
    return {
        "positions": min(arguments.max_seq_len, shape.targets - shape.offset),
        "end_id": end,
        "other_ends": tuple(others),
        "pad_id": end if pad is None or not 0 <= pad < shape.vocabulary else pad,
    }


def _write_pictures(arguments: Arguments, theirs: Any) -> None:
    """Write picture.json and picture_prompt.json of transformers' model."""
    looks, config = LOOKS[arguments.family], theirs.config.to_dict()
    size = size_of(config)
    if arguments.random:
        facts = PictureFacts(size, size if looks.crops else 0, MEAN, DEVIATION)
    else:
        facts = picture_facts(Path(arguments.weights), size, crops=looks.crops)
    facts.save(arguments.output)
    looks.prompt(config).save(arguments.output)


def _write_tokenizer(arguments: Arguments, vocabulary: int) -> None:
    """Write the checkpoint's tokenizer, or one that suits random weights, and the family's chat template if
    checkpoints have none.
    """
    if (looks := LOOKS.get(arguments.family)) and looks.chat:
        (arguments.output / "chat_template.jinja").write_text(looks.chat, "utf-8")
    if not arguments.random:
        copy_tokenizer(Path(arguments.weights), arguments.output)
        if arguments.chat_template:
            shutil.copy(ROOT / arguments.chat_template, arguments.output / "chat_template.jinja")
        return
    made: Any
    if arguments.family == "whisper":
        made = whisper_tokenizer(99 if vocabulary == 51865 else 100)
    else:
        made = numbered_tokenizer(vocabulary)
    made.save(str(arguments.output / "tokenizer.json"))


def numbered_tokenizer(vocabulary: int) -> Tokenizer:
    """Write a tokenizer for random weights: words `<0>`, `<1>` and so on, separated by spaces; anything else
    is the last one.
    """
    tokenizer = Tokenizer(
        models.WordLevel({f"<{i}>": i for i in range(vocabulary)}, unk_token=f"<{vocabulary - 1}>")
    )
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return tokenizer
