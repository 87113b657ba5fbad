"""The museum's figures with a CLIP in plain transformers, on a CPU:
`python -m miniatures.pictures.evaluate`.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from transformers import CLIPModel, CLIPTokenizer
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

from .museum import PICTURES, SEED, museum, recall
from .scenes import KINDS

GOAL = 0.9  # of both recalls over all kinds
BATCH = 64
Vectors = NDArray[np.float32]


class Peer:
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
        return dict(
            self.tokenizer(list(texts), padding=True, truncation=True, max_length=77, return_tensors="np")
        )

    def pictures(self, pictures: Sequence[Image.Image]) -> Vectors:
        """Vectors [pictures, dimensions] of length 1."""
        parts = (pictures[at : at + BATCH] for at in range(0, len(pictures), BATCH))
        return np.concatenate(
            [
                _of(self.model.get_image_features, pixel_values=torch.from_numpy(self.pixels(part)))
                for part in parts
            ]
        )

    def texts(self, texts: Sequence[str]) -> Vectors:
        """Vectors [texts, dimensions] of length 1."""
        coded = {name: torch.from_numpy(array) for name, array in self.coded(texts).items()}
        return _of(self.model.get_text_features, **coded)


@torch.no_grad()
def _of(features: Any, **inputs: torch.Tensor) -> Vectors:
    given = features(**inputs)
    found = torch.nn.functional.normalize(getattr(given, "pooler_output", given), dim=-1)
    return np.asarray(found.numpy(), np.float32)


def main() -> None:
    """Print one JSON line for all kinds of scenes, and one for each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--checkpoint", type=Path, default=Path("miniatures/clip"))
    parser.add_argument("--count", type=int, default=PICTURES, help="pictures")
    parser.add_argument("--seed", type=int, default=SEED)
    given = parser.parse_args()
    peer, exhibits = Peer(given.checkpoint), museum(given.count, given.seed)
    pictures, texts = (
        peer.pictures([one.picture for one in exhibits]),
        peer.texts([one.caption for one in exhibits]),
    )
    products = texts @ pictures.T
    found, own = (products.argmax(1), products.argmax(0)), np.arange(len(exhibits))
    kinds = np.array([one.kind for one in exhibits])
    both = recall(pictures, texts)
    print(
        json.dumps(
            {"text to picture": round(both[0], 4), "picture to text": round(both[1], 4), "wanted": GOAL}
        )
    )
    for kind in KINDS:
        rows = kinds == kind
        shares = [round(float((best == own)[rows].mean()), 4) for best in found]
        print(json.dumps({"kind": kind, "text to picture": shares[0], "picture to text": shares[1]}))


if __name__ == "__main__":
    main()
