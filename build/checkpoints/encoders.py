"""What every target's exporter shares for encoders alone (embedding models): the checkpoint's network, and
the files that accompany an engine.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from serving.architectures.bert import TextEmbedder
from serving.architectures.clip import Clip
from serving.architectures.speakers import Speakers

from ..pictures import picture_facts
from . import clip, copy_tokenizer, minilm, speakers

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
