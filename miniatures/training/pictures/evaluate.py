"""A CLIP in plain transformers, on a CPU: the museum's figures, and what it makes of pictures by strangers.
`python -m miniatures.training.pictures.evaluate`, with `--easy-vqa` for the data set of that Python package.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from transformers import CLIPModel, CLIPTokenizer
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

from .museum import PICTURES, SEED, Exhibit, museum, recall
from .scenes import KINDS, a

GOAL = 0.9  # of both recalls over all kinds
BATCH = 64
EASY_COLOURS = {"red", "green", "blue", "black", "gray", "teal", "brown", "yellow"}
EASY_SHAPES = {"circle", "rectangle", "triangle"}
Vectors = NDArray[np.float32]


class PicturePeer:
    """A checkpoint in transformers, float32: its processor, its tokenizer, its model."""

    def __init__(self, folder: Path) -> None:
        self.model = CLIPModel.from_pretrained(folder, dtype=torch.float32).eval()
        self.processor = CLIPImageProcessorPil.from_pretrained(folder)
        self.tokenizer = CLIPTokenizer.from_pretrained(folder)

    def pixels(self, pictures: Sequence[Image.Image]) -> Vectors:
        """[pictures, 3, size, size]."""
        found: Vectors = self.processor(list(pictures), return_tensors="np")["pixel_values"]
        return found

    def coded(self, texts: Sequence[str]) -> dict[str, Any]:
        """input_ids and attention_mask [texts, n]."""
        options = {"padding": True, "truncation": True, "max_length": 77, "return_tensors": "np"}
        return dict(self.tokenizer(list(texts), **options))

    def pictures(self, pictures: Sequence[Image.Image]) -> Vectors:
        """Vectors [pictures, dimensions] of length 1."""
        parts = (self.pixels(pictures[at : at + BATCH]) for at in range(0, len(pictures), BATCH))
        look = self.model.get_image_features
        return np.concatenate([_of(look, pixel_values=torch.from_numpy(part)) for part in parts])

    def texts(self, texts: Sequence[str]) -> Vectors:
        """Vectors [texts, dimensions] of length 1."""
        coded = {name: torch.from_numpy(array) for name, array in self.coded(texts).items()}
        return _of(self.model.get_text_features, **coded)


@torch.no_grad()
def _of(features: Any, **inputs: torch.Tensor) -> Vectors:
    given = features(**inputs)
    found = torch.nn.functional.normalize(getattr(given, "pooler_output", given), dim=-1)
    return np.asarray(found.numpy(), np.float32)


def easy_vqa(peer: PicturePeer) -> dict[str, float]:
    """Shares of easy-vqa's test pictures (one thing on a pale background) whose best of all captions "a
    COLOUR SHAPE" has the right colour, the right shape, and both. Nobody trains on them
    (https://github.com/vzhou842/easy-VQA).
    """
    from easy_vqa import get_test_image_paths, get_test_questions

    seen: dict[int, set[str]] = {}
    for _, answer, number in zip(*get_test_questions(), strict=True):
        seen.setdefault(number, set()).add(answer)
    every = get_test_image_paths()
    paths = {number: path for number, path in every.items() if _shown(seen.get(number, set()))}
    pairs = [(colour, shape) for colour in sorted(EASY_COLOURS) for shape in sorted(EASY_SHAPES)]
    pictures = peer.pictures([Image.open(path).convert("RGB") for path in paths.values()])
    best = (pictures @ peer.texts([f"{a(colour)} {shape}" for colour, shape in pairs]).T).argmax(1)
    right = [
        [set(pairs[at]) & EASY_COLOURS <= seen[number], set(pairs[at]) & EASY_SHAPES <= seen[number]]
        for at, number in zip(best, paths, strict=True)
    ]
    colour, shape = np.array(right).T
    shares = {"colour": colour.mean(), "shape": shape.mean(), "both": (colour & shape).mean()}
    shown = {name: round(float(share), 4) for name, share in shares.items()}
    return {"easy-vqa, pictures": float(len(paths)), **shown}


def _shown(answers: set[str]) -> bool:
    """Whether the questions' answers tell what is in the picture."""
    return len(answers & EASY_COLOURS) == 1 == len(answers & EASY_SHAPES)


def recalls(peer: PicturePeer, exhibits: Sequence[Exhibit]) -> Iterator[dict[str, Any]]:
    """Both recalls at 1 in the museum, over all kinds of scenes, then of each."""
    pictures = peer.pictures([one.picture for one in exhibits])
    texts = peer.texts([one.caption for one in exhibits])
    products = texts @ pictures.T
    found, own = (products.argmax(1), products.argmax(0)), np.arange(len(exhibits))
    kinds = np.array([one.kind for one in exhibits])
    to_picture, to_text = (round(share, 4) for share in recall(pictures, texts))
    yield {"text to picture": to_picture, "picture to text": to_text, "wanted": GOAL}
    for kind in KINDS:
        rows = kinds == kind
        shares = [round(float((best == own)[rows].mean()), 4) for best in found]
        yield {"kind": kind, "text to picture": shares[0], "picture to text": shares[1]}


def main() -> None:
    """Print one JSON line for all kinds of scenes, and one for each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--checkpoint", type=Path, default=Path("miniatures/clip"))
    parser.add_argument("--count", type=int, default=PICTURES, help="pictures")
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--easy-vqa", action="store_true", help="that data set instead of the museum")
    given = parser.parse_args()
    peer = PicturePeer(given.checkpoint)
    if given.easy_vqa:
        print(json.dumps(easy_vqa(peer)))
        return
    for row in recalls(peer, museum(given.count, given.seed)):
        print(json.dumps(row))


if __name__ == "__main__":
    main()
