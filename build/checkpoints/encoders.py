"""What every target's exporter of encoders (embedding models) shares: the checkpoint's network, the files
that accompany an engine, and the command line.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

from serving.architectures.bert import TextEmbedder
from serving.architectures.clip import Clip
from serving.architectures.speakers import Speakers

from ..pictures import picture_facts
from . import clip, minilm, speakers
from .arguments import copy_tokenizer

Network = TextEmbedder | Clip | Speakers


def _minilm(weights: Path, output: Path, longest: int) -> TextEmbedder:
    theirs, ours = minilm.load(weights)
    minilm.facts(theirs, weights, longest).save(output)
    return ours


def _clip(weights: Path, output: Path, longest: int) -> Clip:
    ours = clip.load(weights)
    picture_facts(weights, ours.shape.size, crops=True).save(output)
    clip.facts(ours.shape, longest).save(output)
    return ours


def _speakers(weights: Path, output: Path, _: int) -> Speakers:
    speakers.facts().save(output)
    return speakers.load(weights)


FAMILIES: dict[str, Callable[[Path, Path, int], Network]] = {
    "minilm": _minilm,
    "clip": _clip,
    "speakers": _speakers,
}


def load(family: str, weights: Path, output: Path, longest: int) -> Network:
    """Load the network in float32, and write engine.json, picture.json for pictures, and the tokenizer's
    files. `longest` limits tokens of a text; 0 means as many as the model was trained for.

    Raises:
        Unsupported: a checkpoint that this family does not read.
    """
    network = FAMILIES[family](weights, output, longest)
    copy_tokenizer(weights, output)
    return network


def parser(description: str | None) -> argparse.ArgumentParser:
    """Make the command line that exporters of encoders share."""
    made = argparse.ArgumentParser(description=description)
    made.add_argument("--family", choices=list(FAMILIES), required=True)
    made.add_argument("--weights", type=Path, required=True, help="a folder in Hugging Face layout")
    made.add_argument("--output", type=Path, required=True)
    made.add_argument("--max-input-len", type=int, default=0, help="tokens; 0: as the model was trained")
    return made
