"""Paragraphs of news and single sentences of a generated world, drawn at random and split for training and
test.

Everything the world can say stands in `world.toml`; this module only fills slots. A paragraph belongs to the
held-out part by a hash of its headline, a single sentence by a hash of its text, so no split file has to be
kept.
"""

from __future__ import annotations

import random
import re
import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from ..speech.sentences import held_out

WORLD: dict[str, Any] = tomllib.loads((Path(__file__).parent / "world.toml").read_text("utf-8"))
SENTENCES = (3, 6)


class Person(NamedTuple):
    """Somebody; `gender` is "she" or "he", told from the first name."""

    first: str
    last: str
    gender: str

    def form(self, name: str) -> str:
        """The full name, or what stands for it: last, she, She, her."""
        if name in {"she", "She"}:
            return self.gender.capitalize() if name == "She" else self.gender
        return {
            "": f"{self.first} {self.last}",
            "last": self.last,
            "her": "her" if self.gender == "she" else "his",
        }[name]


Value = str | Person


class WorldSlot(NamedTuple):
    """A place in a template: the slot's name and the form of its value."""

    name: str
    form: str


@cache
def parts(template: str) -> tuple[str | WorldSlot, ...]:
    """A template as fixed text and slots in turn."""
    pieces = re.split(r"\{(\w+)(?:\.(\w+))?\}", template)
    out: list[str | WorldSlot] = []
    for fixed, name, form in zip(pieces[::3], [*pieces[1::3], ""], [*pieces[2::3], ""], strict=True):
        out += ([fixed] if fixed else []) + ([WorldSlot(name, form or "")] if name else [])
    return tuple(out)


def spoken(value: Value, form: str = "") -> str:
    """A slot's value as it stands in a sentence."""
    return value.form(form) if isinstance(value, Person) else value


def capital(text: str) -> str:
    """The first letter in upper case, the others as they are."""
    return text[:1].upper() + text[1:]


@dataclass(frozen=True)
class Sentence:
    """`told` says of each word of the text whether it could be told from the others, were it missing."""

    text: str
    told: tuple[bool, ...] = ()


@dataclass(frozen=True)
class Paragraph:
    """News of one kind: what its slots hold, its sentences in order, and the headline that says the whole of
    it.
    """

    kind: str
    values: dict[str, Value]
    sentences: tuple[Sentence, ...]
    headline: str

    @property
    def text(self) -> str:
        """All sentences."""
        return " ".join(sentence.text for sentence in self.sentences)


def fill(template: str, values: dict[str, Value], mentioned: set[str] | None = None) -> Sentence:
    """Render a template. Fixed words can be told, and so can slots in `mentioned`, to which this template's
    slots are added.
    """
    mentioned = set() if mentioned is None else mentioned
    text, known = "", []
    for part in parts(template):
        piece = part if isinstance(part, str) else spoken(values[part.name], part.form)
        known += [isinstance(part, str) or part.name in mentioned] * len(piece)
        text += piece
        if not isinstance(part, str):
            mentioned.add(part.name)
    told, at = [], 0
    for word in text.split(" "):
        told.append(all(known[at : at + len(word)]))
        at += len(word) + 1
    return Sentence(capital(text), tuple(told))


class Draw:
    """Random values, paragraphs and sentences."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng

    def value(self, kind: str) -> Value:
        """One value of a slot's type."""
        rng = self.rng
        if kind == "person":
            gender = rng.choice(("she", "he"))
            return Person(rng.choice(WORLD["person"][gender]), rng.choice(WORLD["person"]["last"]), gender)
        if kind.startswith("number "):
            low, high, *step = map(int, kind.split()[1:])
            return str(rng.randrange(low, high + 1, *step))
        return rng.choice(WORLD["words"][kind])

    def values(self, slots: dict[str, str]) -> dict[str, Value]:
        """Values for all slots; those of one type differ (of persons, both names differ)."""
        out: dict[str, Value] = {}
        for name, kind in slots.items():
            value = self.value(kind)
            while any(kind == slots[other] and clash(value, out[other]) for other in out):
                value = self.value(kind)
            out[name] = value
        return out

    def paragraph(self, *, held: bool) -> Paragraph:
        """A random paragraph of the wanted split."""
        while True:
            name = self.rng.choice(list(WORLD["kinds"]))
            kind = WORLD["kinds"][name]
            values = self.values(kind["slots"])
            headline = fill(kind["headline"], values).text
            if held_out(headline) == held:
                mentioned: set[str] = set()
                says = [self.rng.choice(stage["say"]) for stage in self._stages(kind["stages"])]
                sentences = tuple(fill(say, values, mentioned) for say in says)
                return Paragraph(name, values, sentences, headline)

    def _stages(self, stages: list[dict[str, Any]]) -> list[dict[str, Any]]:
        free = [stage for stage in stages if not stage.get("must")]
        must = len(stages) - len(free)
        fewest, most = max(SENTENCES[0] - must, 0), min(SENTENCES[1] - must, len(free))
        chosen = self.rng.sample(free, self.rng.randint(fewest, most))
        return [stage for stage in stages if stage.get("must") or stage in chosen]

    def sentence(self, *, held: bool) -> Sentence:
        """A random single sentence of the wanted split."""
        plain = WORLD["plain"]
        while True:
            template = self.rng.choice(plain["say"])
            names = {part.name for part in parts(template) if isinstance(part, WorldSlot)}
            slots = {name: kind for name, kind in plain["slots"].items() if name in names}
            sentence = fill(template, self.values(slots))
            if held_out(sentence.text) == held:
                return sentence


def clash(one: Value, other: Value) -> bool:
    """Whether two slots of one type may not have these values together."""
    if isinstance(one, Person) and isinstance(other, Person):
        return one.first == other.first or one.last == other.last
    return one == other
