"""Encoders alone for the torch engine: `python -m build.targets.torch.export_encoder --family F --weights
FOLDER --output FOLDER` writes model.safetensors under the names of serving/architectures, architecture.json,
engine.json, for pictures picture.json, and the tokenizer's files.
"""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Callable
from pathlib import Path

import torch

from build.checkpoints import clip, minilm
from build.checkpoints.arguments import TOKENIZER
from build.pictures import cropped
from serving.architectures.bert import Embedder
from serving.architectures.clip import Clip
from serving.engine.torch.runtime import WEIGHTS

from .export import save


def _minilm(weights: Path, output: Path, longest: int) -> Embedder:
    theirs, ours = minilm.load(weights)
    minilm.facts(theirs, weights, longest).save(output)
    return ours


def _clip(weights: Path, output: Path, longest: int) -> Clip:
    ours = clip.load(weights)
    clip.facts(ours.shape, longest).save(output)
    cropped(weights, ours.shape.size).save(output)
    return ours


FAMILIES: dict[str, Callable[[Path, Path, int], Embedder | Clip]] = {"minilm": _minilm, "clip": _clip}


def export(family: str, weights: Path, output: Path, precision: str, longest: int) -> None:
    """Write the engine folder."""
    model = FAMILIES[family](weights, output, longest)
    model.shape.save(output)
    save(model.to(getattr(torch, precision)), output / WEIGHTS)
    for file in TOKENIZER:
        if (weights / file).exists():
            shutil.copy(weights / file, output / file)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--family", choices=list(FAMILIES), required=True)
    parser.add_argument("--weights", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--precision", choices=["float16", "bfloat16", "float32"], default="float16")
    parser.add_argument("--max-input-len", type=int, default=0, help="tokens; 0: as the model was trained")
    given = parser.parse_args()
    export(given.family, given.weights, given.output, given.precision, given.max_input_len)


if __name__ == "__main__":
    main()
