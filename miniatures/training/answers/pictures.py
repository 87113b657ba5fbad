"""What is asked about: the scenes of miniatures.training.pictures, and single shapes of any size, place and
proportion on light grounds, which other makers of pictures are fond of.
"""

from __future__ import annotations

from random import Random

from PIL import Image, ImageDraw

from miniatures.training.pictures.drawing import CANVAS, draw, tinted
from miniatures.training.pictures.scenes import COLOURS, KINDS, Scene, Thing, a, scene

ALL = (*KINDS, "plain")
SIZE = 96  # pixels on a side, as the models read them
# Two names of which people mean colours far apart; the others are near those of world.toml.
ALSO = {"brown": ((165, 42, 42), (120, 70, 30)), "red": ((255, 0, 0), (220, 30, 30))}


def drawn(rng: Random, kind: str, *, held: bool) -> tuple[Scene, Image.Image]:
    """A random scene of a kind that belongs to training, or (`held`) does not, and its picture. Of plain ones
    no words are kept from training, but no two pictures are the same.
    """
    if kind == "plain":
        one = plain(rng)
        return one, draw_plain(one, rng)
    one = scene(rng, kind, held=held)
    return one, draw(one, rng)


def plain(rng: Random) -> Scene:
    """A shape somewhere, about as large as its `radius` says."""
    shape = rng.choice(["circle", "rectangle", "triangle"])
    colour = rng.choice([one for one in COLOURS if one != "white"])
    thing = Thing(shape, colour, 4, rng.uniform(12, 60))
    description = f"{a(colour)} {shape}"
    return Scene("plain", "white", description, description, (thing,))


def draw_plain(one: Scene, rng: Random) -> Image.Image:
    """An RGB picture of CANVAS pixels on a side."""
    (thing,) = one.things
    red, green, blue = (rng.randint(228, 255) for _ in range(3))
    picture = Image.new("RGB", (CANVAS, CANVAS), (red, green, blue))
    pen = ImageDraw.Draw(picture)
    fill = rng.choice(ALSO[thing.colour]) if thing.colour in ALSO else tinted(rng, thing.colour)
    wide, high = thing.radius * rng.uniform(0.6, 1.6), thing.radius * rng.uniform(0.6, 1.6)
    wide, high = (thing.radius, thing.radius) if thing.shape == "circle" else (wide, high)
    x, y = rng.uniform(wide, CANVAS - wide), rng.uniform(high, CANVAS - high)
    box = (x - wide, y - high, x + wide, y + high)
    if thing.shape == "circle":
        pen.ellipse(box, fill=fill)
    elif thing.shape == "rectangle":
        pen.rectangle(box, fill=fill)
    else:
        top = rng.uniform(x - wide, x + wide)
        pen.polygon([(top, y - high), (x + wide, y + high), (x - wide, y + high)], fill=fill)
    return picture


def small(picture: Image.Image) -> Image.Image:
    """As the models read it."""
    return picture.resize((SIZE, SIZE), Image.Resampling.BICUBIC)
