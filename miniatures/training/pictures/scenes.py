"""Scenes: what a generated picture shows, and what its caption says. A tenth of all scenes, by a hash of the
plain caption, is in no training picture.
"""

from __future__ import annotations

import tomllib
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random

WORLD = tomllib.loads((Path(__file__).parent / "world.toml").read_text("utf-8"))
COLOURS: dict[str, tuple[int, int, int]] = {name: tuple(row) for name, row in WORLD["colours"].items()}
SIDES = ("left of", "right of", "above", "below")
FORMS = ("{} on a {} background", "a picture of {} on {}", "{}, and the background is {}")
BRIEF = 0.15  # of the training captions say less than the picture shows, as people who search do


@dataclass(frozen=True)
class Thing:
    """A shape in a cell of the grid (0 to 8, rows first). `radius`: in canvas pixels."""

    shape: str
    colour: str
    cell: int
    radius: float


@dataclass(frozen=True)
class Scene:
    """What is drawn, from the back to the front, and its caption: `description` describes what can be seen,
    `brief` with less.
    """

    kind: str
    ground: str
    description: str
    brief: str
    things: tuple[Thing, ...] = ()
    text: str = ""
    colour: str = ""
    band: int = 0

    @property
    def caption(self) -> str:
        """The plain one."""
        return FORMS[0].format(self.description, self.ground)

    @property
    def held(self) -> bool:
        """Kept from training."""
        return zlib.crc32(self.caption.encode()) % 10 == 0

    def worded(self, rng: Random) -> str:
        """A caption for training."""
        if rng.random() < BRIEF:
            return self.brief
        return rng.choice(FORMS).format(self.description, self.ground)


def _radius(rng: Random, size: str) -> float:
    return rng.uniform(13, 17) if size == "small" else rng.uniform(26, 31)


def a(words: str) -> str:
    """With its article."""
    return f"{'an' if words[0] in 'aeiou' else 'a'} {words}"


def plural(shape: str) -> str:
    """Of a shape's name."""
    return {"cross": "crosses"}.get(shape, f"{shape}s")


def _other(rng: Random, names: list[str], *not_these: str) -> str:
    return rng.choice([name for name in names if name not in not_these])


def one(rng: Random, ground: str) -> Scene:
    """A single thing, its size, its place."""
    shape, size, cell = rng.choice(WORLD["shapes"]), rng.choice(WORLD["sizes"]), rng.randrange(9)
    colour = _other(rng, [*COLOURS], ground)
    description = f"a {size} {colour} {shape} {WORLD['places'][cell]}"
    thing = Thing(shape, colour, cell, _radius(rng, size))
    return Scene("one", ground, description, f"{a(colour)} {shape}", (thing,))


def two(rng: Random, ground: str) -> Scene:
    """Two things and their places; the one that is named first is in the background."""
    cells = sorted(rng.sample(range(9), 2))
    rng.shuffle(cells)
    drawn = [(rng.choice(WORLD["shapes"]), _other(rng, [*COLOURS], ground), cell) for cell in cells]
    things = tuple(Thing(*row, rng.uniform(20, 29)) for row in drawn)
    places = WORLD["places"]
    description = " and ".join(f"{a(colour)} {shape} {places[cell]}" for shape, colour, cell in drawn)
    brief = " and ".join(f"{a(colour)} {shape}" for shape, colour, _ in drawn)
    return Scene("two", ground, description, brief, things)


def count(rng: Random, ground: str) -> Scene:
    """Two to nine equal things anywhere."""
    number = rng.randrange(len(WORLD["counts"]))
    shape, colour = rng.choice(WORLD["shapes"]), _other(rng, [*COLOURS], ground)
    radius = rng.uniform(17, 25)
    things = tuple(Thing(shape, colour, cell, radius) for cell in rng.sample(range(9), number + 2))
    brief = f"{colour} {plural(shape)}"
    return Scene("count", ground, f"{WORLD['counts'][number]} {brief}", brief, things)


def relation(rng: Random, ground: str) -> Scene:
    """Two things, one next to, over, under or in the other."""
    how = rng.choice(WORLD["relations"])
    first, second = rng.choice(WORLD["shapes"]), rng.choice(WORLD["shapes"])
    inside = how == "inside"
    second = "square" if inside and second not in ("circle", "square", "rectangle", "diamond") else second
    its = _other(rng, [*COLOURS], ground)
    own = _other(rng, [*COLOURS], ground, its)
    description = f"{a(own)} {first} {how} {a(its)} {second}"
    if inside:
        things = (Thing(second, its, 4, rng.uniform(75, 92)), Thing(first, own, 4, rng.uniform(20, 28)))
    else:
        cell = rng.randrange(3)
        near, far = (cell * 3, cell * 3 + 2) if how in SIDES[:2] else (cell, cell + 6)
        here, there = (near, far) if how in ("left of", "above") else (far, near)
        drawn = ((first, own, here), (second, its, there))
        things = tuple(Thing(*row, rng.uniform(22, 31)) for row in drawn)
    return Scene("relation", ground, description, f"{a(own)} {first} and {a(its)} {second}", things)


def number(rng: Random, ground: str) -> Scene:
    """One to four digits."""
    return _written(rng, ground, "number", str(rng.randrange(10 ** rng.randint(1, 4))))


def word(rng: Random, ground: str) -> Scene:
    """A short word."""
    return _written(rng, ground, "word", rng.choice(WORLD["words"]))


def _written(rng: Random, ground: str, kind: str, text: str) -> Scene:
    colour, band = _other(rng, [*COLOURS], ground), rng.randrange(3)
    brief = f"the {kind} {text}"
    description = f"{brief} in {colour} {WORLD['bands'][band]}"
    return Scene(kind, ground, description, brief, text=text, colour=colour, band=band)


KINDS: dict[str, Callable[[Random, str], Scene]] = {
    "one": one,
    "two": two,
    "count": count,
    "relation": relation,
    "number": number,
    "word": word,
}


def scene(rng: Random, kind: str, *, held: bool) -> Scene:
    """A random one of a kind that belongs to training, or (`held`) does not."""
    while True:
        drawn = KINDS[kind](rng, rng.choice(WORLD["grounds"]))
        if drawn.held == held:
            return drawn
