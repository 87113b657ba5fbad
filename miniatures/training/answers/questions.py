"""Questions about a scene (miniatures.training.pictures.scenes) with their only right answers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from random import Random

from miniatures.training.pictures.scenes import COLOURS, FORMS, WORLD, Scene, a, plural

COUNTS = ["one", *WORLD["counts"]]
# How one asks whether a thing is there, and whether it is not.
PRESENT = (
    "is there {}?",
    "is there {} in the image?",
    "is there {} in the picture?",
    "does the image contain {}?",
    "is {} present?",
)
ABSENT = ("is there not {}?", "is there not {} in the image?", "does the image not contain {}?")
NONE = "is no {} present?"
COLOUR = (
    "what color is the {}?",
    "what colour is the {}?",
    "what is the color of the {}?",
    "what is the colour of the {}?",
)
SHAPE = (
    "what shape is in the image?",
    "what shape is present?",
    "what shape does the image contain?",
    "what shape is it?",
)
GROUND = ("what colour is the background?", "what color is the background?")
DESCRIBE = ("describe the picture.", "what does the picture show?", "what is in the picture?")
HOW_MANY = ("how many {} are there?", "how many {} are in the picture?")
WHERE = ("where is the {}?", "where in the picture is the {}?")

TURNED = {"right of": "left of", "below": "above"}


@dataclass(frozen=True)
class PictureQuestion:
    """What is asked, what is right, and of what kind it is."""

    text: str
    answer: str
    kind: str


def questions(scene: Scene, rng: Random) -> Iterator[PictureQuestion]:
    """Endlessly, of every kind that suits the scene as often."""
    makers = [_ground, _description, *_BY_KIND[scene.kind]]
    while True:
        asked = rng.choice(makers)(scene, rng)
        if asked is not None:
            yield asked


def worded(text: str, rng: Random) -> str:
    """As people write: half of them begin with a capital letter."""
    return text[0].upper() + text[1:] if rng.random() < 0.5 else text


def _ground(scene: Scene, rng: Random) -> PictureQuestion | None:
    return PictureQuestion(rng.choice(GROUND), scene.ground, "background")


def _description(scene: Scene, rng: Random) -> PictureQuestion | None:
    return PictureQuestion(
        rng.choice(DESCRIBE), FORMS[0].format(_described(scene), scene.ground), "description"
    )


def _described(scene: Scene) -> str:
    """What a scene says of itself, of the ways to say it the one that there is a rule for: two things in the
    order of reading, what is related from the left or from above.
    """
    if scene.kind == "two":
        ordered = sorted(scene.things, key=lambda one: one.cell)
        return " and ".join(f"{a(one.colour)} {one.shape} {WORLD['places'][one.cell]}" for one in ordered)
    if scene.kind == "relation" and (how := _related(scene)[1]) in TURNED:
        first, second = scene.description.split(f" {how} ")
        return f"{second} {TURNED[how]} {first}"
    return scene.description


def _present(scene: Scene, rng: Random) -> PictureQuestion | None:
    """Whether something is there: about as often as not it is not, and then one half of it may be."""
    there, thing = rng.random() < 0.4, rng.choice(scene.things)
    how = rng.choice(("shape", "colour", "both"))
    shape, colour = thing.shape, thing.colour
    if not there:
        shape = rng.choice((rng.choice(WORLD["shapes"]), rng.choice(scene.things).shape))
        colour = rng.choice((rng.choice([*COLOURS]), rng.choice(scene.things).colour))
    words = {"shape": shape, "colour": f"{colour} shape", "both": f"{colour} {shape}"}[how]
    seen = any(
        (how == "colour" or one.shape == shape) and (how == "shape" or one.colour == colour)
        for one in scene.things
    )
    form = rng.choice((*PRESENT, *ABSENT, NONE))
    negated = form in (*ABSENT, NONE)
    text = form.format(words if form == NONE else a(words))
    return PictureQuestion(text, "yes" if seen != negated else "no", "presence")


def _colour(scene: Scene, rng: Random) -> PictureQuestion | None:
    thing = rng.choice(scene.things)
    if len({one.colour for one in scene.things if one.shape == thing.shape}) > 1:
        return None
    alone = len(scene.things) == 1 and rng.random() < 0.5
    text = rng.choice(COLOUR).format("shape" if alone else thing.shape)
    return PictureQuestion(text, thing.colour, "colour")


def _missing_colour(scene: Scene, rng: Random) -> PictureQuestion | None:
    """Of something that is not in the picture."""
    shape = rng.choice(WORLD["shapes"])
    if any(one.shape == shape for one in scene.things):
        return None
    return PictureQuestion(rng.choice((*COLOUR, *WHERE)).format(shape), f"there is no {shape}", "not there")


def _shape(scene: Scene, rng: Random) -> PictureQuestion | None:
    thing = rng.choice(scene.things)
    if len({one.shape for one in scene.things}) == 1 and rng.random() < 0.5:
        return PictureQuestion(rng.choice(SHAPE), thing.shape, "shape")
    if len({one.shape for one in scene.things if one.colour == thing.colour}) > 1:
        return None
    return PictureQuestion(f"what is the {thing.colour} shape?", thing.shape, "shape")


def _size(scene: Scene, rng: Random) -> PictureQuestion | None:
    thing = scene.things[0]
    size = "large" if thing.radius > 20 else "small"
    return PictureQuestion(f"is the {thing.shape} small or large?", size, "size")


def _where(scene: Scene, rng: Random) -> PictureQuestion | None:
    thing = rng.choice(scene.things)
    alike = [one for one in scene.things if (one.shape, one.colour) == (thing.shape, thing.colour)]
    if len(alike) > 1:
        return None
    words = f"{thing.colour} {thing.shape}"
    return PictureQuestion(rng.choice(WHERE).format(words), WORLD["places"][thing.cell], "place")


def _how_many(scene: Scene, rng: Random) -> PictureQuestion | None:
    thing = scene.things[0]
    words = rng.choice(("shapes", plural(thing.shape), f"{thing.colour} {plural(thing.shape)}"))
    number = sum(
        words == "shapes"
        or (one.shape == thing.shape and (one.colour == thing.colour or words == plural(thing.shape)))
        for one in scene.things
    )
    return PictureQuestion(rng.choice(HOW_MANY).format(words), COUNTS[number - 1], "count")


def _relation(scene: Scene, rng: Random) -> PictureQuestion | None:
    first, how, second = _related(scene)
    return PictureQuestion(f"what is {how} the {second}?", first, "relation")


def _related(scene: Scene) -> tuple[str, str, str]:
    """`a red star`, `left of`, `blue ring`, of what a scene of two related things says."""
    how = next(one for one in WORLD["relations"] if f" {one} " in scene.description)
    first, second = scene.description.split(f" {how} ")
    return first, how, second.split(" ", 1)[1]


def _what_is_written(scene: Scene, rng: Random) -> PictureQuestion | None:
    forms = (f"what {scene.kind} is written?", f"what {scene.kind} is it?", "what is written in the picture?")
    return PictureQuestion(rng.choice(forms), scene.text, scene.kind)


def _colour_of_text(scene: Scene, rng: Random) -> PictureQuestion | None:
    return PictureQuestion(rng.choice(COLOUR).format(scene.kind), scene.colour, "colour")


def _where_is_text(scene: Scene, rng: Random) -> PictureQuestion | None:
    return PictureQuestion(rng.choice(WHERE).format(scene.kind), WORLD["bands"][scene.band], "place")


Maker = Callable[[Scene, Random], PictureQuestion | None]
_ANY: tuple[Maker, ...] = (_present, _present, _colour, _shape, _missing_colour, _how_many)
_TEXT: tuple[Maker, ...] = (*[_what_is_written] * 3, _colour_of_text, _where_is_text)
_BY_KIND: dict[str, tuple[Maker, ...]] = {
    "one": (*_ANY, _size, _where),
    "plain": (_present, _present, _colour, _shape),
    "two": (*_ANY, _where, _where),
    "count": (*_ANY, _how_many, _how_many),
    "relation": (*_ANY, _relation, _relation),
    "number": _TEXT,
    "word": _TEXT,
}
