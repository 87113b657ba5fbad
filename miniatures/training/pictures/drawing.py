"""Scenes as pictures."""

from __future__ import annotations

import math
from functools import cache
from random import Random

from PIL import Image, ImageDraw, ImageFont

from .scenes import COLOURS, Scene, Thing

CANVAS = 224  # pixels on a side
CENTRES = (38, 112, 186)
JITTER, TILT = 6, 10  # pixels, degrees
BLURRED = 12  # how far a colour is from its name's

Point = tuple[float, float]


def _star() -> list[Point]:
    points = ((i * math.pi / 5, (1.1, 0.45)[i % 2]) for i in range(10))
    return [(radius * math.sin(turn), -radius * math.cos(turn)) for turn, radius in points]


def _heart() -> list[Point]:
    def at(t: float) -> Point:
        y = 13 * math.cos(t) - 5 * math.cos(2 * t) - 2 * math.cos(3 * t) - math.cos(4 * t)
        return math.sin(t) ** 3, -y / 15

    return [at(i * math.tau / 40) for i in range(40)]


A = 0.34  # half the width of a cross's arms
# Half of a cross; the other half is this one turned by 180 degrees.
HALF: list[Point] = [(-A, -1), (A, -1), (A, -A), (1, -A), (1, A), (A, A)]
OUTLINES: dict[str, list[Point]] = {
    "square": [(-0.85, -0.85), (0.85, -0.85), (0.85, 0.85), (-0.85, 0.85)],
    "rectangle": [(-1.1, -0.5), (1.1, -0.5), (1.1, 0.5), (-1.1, 0.5)],
    "triangle": [(0, -1), (1, 0.8), (-1, 0.8)],
    "diamond": [(0, -1.1), (0.75, 0), (0, 1.1), (-0.75, 0)],
    "cross": [*HALF, *((-x, -y) for x, y in HALF)],
    "star": _star(),
    "heart": _heart(),
}


@cache
def _font(size: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    return ImageFont.load_default(size)  # Pillow's own


def tinted(rng: Random, colour: str) -> tuple[int, int, int]:
    """About the colour of that name."""
    red, green, blue = (max(0, min(255, value + rng.randint(-BLURRED, BLURRED))) for value in COLOURS[colour])
    return red, green, blue


def draw(scene: Scene, rng: Random) -> Image.Image:
    """An RGB picture of CANVAS pixels on a side; what the scene leaves open is `rng`'s."""
    picture = Image.new("RGB", (CANVAS, CANVAS), tinted(rng, scene.ground))
    pen = ImageDraw.Draw(picture)
    same = {colour: tinted(rng, colour) for colour in sorted({thing.colour for thing in scene.things})}
    for thing in scene.things:
        _draw_thing(pen, thing, same[thing.colour], rng)
    if scene.text:
        _draw_text(pen, scene, rng)
    return picture


def _draw_thing(pen: ImageDraw.ImageDraw, thing: Thing, fill: tuple[int, int, int], rng: Random) -> None:
    x, y = (CENTRES[at] + rng.uniform(-JITTER, JITTER) for at in (thing.cell % 3, thing.cell // 3))
    r = thing.radius
    box = (x - r, y - r, x + r, y + r)
    if thing.shape == "circle":
        pen.ellipse(box, fill=fill)
    elif thing.shape == "ring":
        pen.ellipse(box, outline=fill, width=round(r * 0.36))
    else:
        turn = math.radians(rng.uniform(-TILT, TILT))
        cos, sin = math.cos(turn) * r, math.sin(turn) * r
        outline = [(x + a * cos - b * sin, y + a * sin + b * cos) for a, b in OUTLINES[thing.shape]]
        pen.polygon(outline, fill=fill)


def _draw_text(pen: ImageDraw.ImageDraw, scene: Scene, rng: Random) -> None:
    at = (CANVAS / 2 + rng.uniform(-20, 20), CENTRES[scene.band] + rng.uniform(-JITTER, JITTER))
    pen.text(at, scene.text, fill=tinted(rng, scene.colour), font=_font(rng.randint(50, 62)), anchor="mm")
