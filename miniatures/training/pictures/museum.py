"""The museum: pictures with captions, each different, of scenes that no training picture shows."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from .drawing import draw
from .scenes import KINDS, scene

SEED = 77
PICTURES = 600


@dataclass(frozen=True)
class Exhibit:
    """A picture of CANVAS pixels on a side, its caption, and its kind of scene."""

    picture: Image.Image
    caption: str
    kind: str


def museum(count: int = PICTURES, seed: int = SEED) -> list[Exhibit]:
    """As many pictures, every kind of scene as often; the seed alone decides which."""
    rng, found = Random(seed), {}
    for number in range(count):
        kind = [*KINDS][number % len(KINDS)]
        drawn = scene(rng, kind, held=True)
        while drawn.caption in found:
            drawn = scene(rng, kind, held=True)
        found[drawn.caption] = Exhibit(draw(drawn, rng), drawn.caption, kind)
    return list(found.values())


def recall(pictures: NDArray[np.float32], texts: NDArray[np.float32]) -> tuple[float, float]:
    """Shares of texts whose nearest picture, and of pictures whose nearest text, is their own. Vectors [n,
    dimensions] of length 1; row i of both belongs together.
    """
    products, own = texts @ pictures.T, np.arange(len(texts))
    return float((products.argmax(1) == own).mean()), float((products.argmax(0) == own).mean())
