"""Map cosines of different models, and of texts and pictures, to one scale. Each model is calibrated once
with pairs that mean the same and pairs that do not; a cosine's score says to which of the two it is nearer.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
from numpy.typing import NDArray

from conch.pictures import Picture

from .library import Embedder, Item

Floats = NDArray[np.float32]
# A question or a sentence, and another one about the same.
SAME = (
    ("When does the train to the coast leave?", "The train to the coast leaves at half past six."),
    (
        "Interest rates were raised by a quarter of a point.",
        "The central bank put rates up by 0.25 per cent.",
    ),
    ("How many eggs go into the dough?", "Add two eggs and a cup of flour to the dough."),
    ("The patient was given antibiotics for ten days.", "Ten days of antibiotics were prescribed."),
    ("What do plants use light for?", "Plants turn sunlight into sugar by photosynthesis."),
    ("Our team lost the final on penalties.", "We were beaten in the final after a penalty shoot-out."),
    ("The old bridge was closed for repairs.", "Repair work has shut the old bridge."),
    ("My router does not connect.", "Restart the router and try to connect again."),
)
COLOURS = {"red": (205, 35, 35), "green": (35, 150, 60), "blue": (40, 70, 205)}
SHAPES = ("circle", "square", "triangle")
SIDE = 64  # pixels
LEAST = 0.02  # between the two means
SLOPE = 4.0  # a score of 0.88 where pairs that mean the same are on average, of 0.12 for the others


def _picture(shape: str, colour: tuple[int, int, int], size: float) -> Picture:
    """Draw a shape on white, as BMP (BITMAPINFOHEADER); `size` is half its side, as a fraction of the
    picture's.
    """
    y, x = np.mgrid[0:SIDE, 0:SIDE] / SIDE - 0.5
    inside = {
        "circle": x**2 + y**2 < size**2,
        "square": (abs(x) < size) & (abs(y) < size),
        "triangle": (y < size) & (y > 2 * abs(x) - size),
    }[shape]
    pixels = np.where(inside[..., None], np.array(colour), 255).astype(np.uint8)
    rows = pixels[::-1, :, ::-1].tobytes()  # from the bottom, blue first
    head = (b"BM", 54 + len(rows), 0, 54, 40, SIDE, SIDE, 1, 24, 0, len(rows), 0, 0, 0, 0)
    return Picture(struct.pack("<2s6I2H6I", *head) + rows)


@dataclass(frozen=True)
class Scale:
    """Mean cosines of pairs that mean the same, and of pairs that do not."""

    same: float
    other: float

    def score(self, cosine: float) -> float:
        """Map a cosine to 0 to 1, with 0.5 half-way between the two means."""
        apart = max(LEAST, self.same - self.other)
        return float(1 / (1 + np.exp(-SLOPE * (cosine - (self.same + self.other) / 2) / apart)))


@dataclass(frozen=True)
class Scales:
    """A model's scales: texts with texts and, if it reads pictures, texts with pictures and pictures with
    pictures.
    """

    texts: Scale
    mixed: Scale
    pictures: Scale

    def of(self, *, query: bool, found: bool) -> Scale:
        """Return the scale for a query and a result, each of which may be a picture."""
        return self.mixed if query != found else self.pictures if query else self.texts


def scale_of(ours: Floats, theirs: Floats) -> Scale:
    """Compute the scale from unit vectors [n, dimensions], each of which matches only its counterpart."""
    cosines = ours @ theirs.T
    same = float(np.diag(cosines).mean())
    return Scale(same, float((cosines.sum() - np.trace(cosines)) / (cosines.size - len(cosines))))


async def measured(embedder: Embedder) -> Scales:
    """Calibrate a model.

    Raises:
        ApiError: see `Embedder.embed`.
    """

    async def embedded(items: Sequence[Item]) -> Floats:
        vectors, _ = await embedder.embed(items, cut=True)
        return vectors

    texts = scale_of(*[await embedded(side) for side in zip(*SAME, strict=True)])
    if not embedder.pictures:
        return Scales(texts, texts, texts)
    things = list(product(SHAPES, COLOURS))
    small, large = [
        await embedded([_picture(shape, COLOURS[colour], size) for shape, colour in things])
        for size in (0.22, 0.36)
    ]
    described = await embedded([f"a {colour} {shape}" for shape, colour in things])
    return Scales(texts, scale_of(described, large), scale_of(small, large))
