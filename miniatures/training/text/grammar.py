"""Does a text belong to the world? Templates read backwards: a sentence's slots, and whether sentences make
one paragraph.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache

from .world import WORLD, Person, Value, WorldSlot, capital, clash, parts

FORMS = {"she": ("she", "he"), "She": ("She", "He"), "her": ("her", "his")}
GENDERS = {first: gender for gender in ("she", "he") for first in WORLD["person"][gender]}
ENDS = re.compile(r"(?<=[.?])\s+")


@dataclass(frozen=True)
class Parse:
    """A sentence understood: its kind of news ("plain" for single ones), its stage, and each mention of a
    slot as (name, form, words).
    """

    kind: str
    stage: int
    mentions: tuple[tuple[str, str, str], ...]


@cache
def pattern(template: str, kind: str) -> re.Pattern[str]:
    """A regular expression with one group for each slot of the template."""
    slots = slots_of(kind)
    out = "".join(
        re.escape(part) if isinstance(part, str) else f"({_words(slots[part.name], part.form)})"
        for part in parts(template)
    )
    return re.compile(out)


def slots_of(kind: str) -> dict[str, str]:
    """The slot types of a kind of news or of the single sentences."""
    return WORLD["plain"]["slots"] if kind == "plain" else WORLD["kinds"][kind]["slots"]


def _words(kind: str, form: str) -> str:
    person = WORLD["person"]
    if kind == "person":
        last = "|".join(person["last"])
        if form in FORMS:
            return "|".join(FORMS[form])
        return last if form == "last" else f"(?:{'|'.join(GENDERS)}) (?:{last})"
    if kind.startswith("number "):
        return "[1-9][0-9]*"
    return "|".join(dict.fromkeys([*WORLD["words"][kind], *map(capital, WORLD["words"][kind])]))


def templates() -> list[tuple[str, int, str]]:
    """Every template with its kind and stage."""
    news = [
        (name, i, say)
        for name, kind in WORLD["kinds"].items()
        for i, stage in enumerate(kind["stages"])
        for say in stage["say"]
    ]
    return news + [("plain", 0, say) for say in WORLD["plain"]["say"]]


def readings(sentence: str) -> list[Parse]:
    """All ways in which the world's grammar makes this sentence; empty for a sentence that is not of the
    world.
    """
    found = []
    for kind, stage, template in templates():
        match = pattern(template, kind).fullmatch(sentence)
        if match:
            slots = [part for part in parts(template) if isinstance(part, WorldSlot)]
            mentions = tuple(
                (slot.name, slot.form, words) for slot, words in zip(slots, match.groups(), strict=True)
            )
            if consistent(kind, mentions):
                found.append(Parse(kind, stage, mentions))
    return found


def consistent(kind: str, mentions: tuple[tuple[str, str, str], ...]) -> bool:
    """No slot has two values, no number is out of its range, no pronoun has the wrong gender, and slots of
    one type differ.
    """
    slots, full = slots_of(kind), {}
    for name, form, words in mentions:
        if not form and full.setdefault(name, _value(slots[name], words)) != _value(slots[name], words):
            return False
    names = list(full)
    apart = not any(
        slots[a] == slots[b] and clash(full[a], full[b]) for i, a in enumerate(names) for b in names[:i]
    )
    in_range = all(_in_range(slots[name], words) for name, _, words in mentions)
    return apart and _agree(full, mentions) and in_range


def _value(kind: str, words: str) -> Value:
    if kind != "person":
        return words
    first, last = words.split(" ")
    return Person(first, last, GENDERS[first])


def _agree(full: dict[str, Value], mentions: tuple[tuple[str, str, str], ...]) -> bool:
    """Every form of a person fits the full name where there is one, and the other forms in any case."""
    genders, lasts = {}, {}
    for name, form, words in mentions:
        person = full.get(name)
        if isinstance(person, Person) and person.form(form) != words:
            return False
        if form in FORMS and genders.setdefault(name, FORMS[form].index(words)) != FORMS[form].index(words):
            return False
        if form == "last" and lasts.setdefault(name, words) != words:
            return False
    return True


def _in_range(kind: str, words: str) -> bool:
    if not kind.startswith("number "):
        return True
    low, high, *step = map(int, kind.split()[1:])
    return int(words) in range(low, high + 1, *step)


def sentences(text: str) -> list[str]:
    """A text cut after full stops and question marks."""
    return [sentence for sentence in ENDS.split(text.strip()) if sentence]


def is_paragraph(text: str) -> bool:
    """Whether the sentences are one whole paragraph: of one kind, in order, nothing left out, and true to
    each other.
    """
    read = [readings(sentence) for sentence in sentences(text)]
    if not read or not all(read):
        return False
    kinds = {reading.kind for found in read for reading in found} - {"plain"}
    return any(
        _whole(kind, [next((r for r in found if r.kind == kind), None) for found in read]) for kind in kinds
    )


def _whole(kind: str, read: list[Parse | None]) -> bool:
    if None in read:
        return False
    found = [reading for reading in read if reading]
    order = [reading.stage for reading in found]
    must = {i for i, stage in enumerate(WORLD["kinds"][kind]["stages"]) if stage.get("must")}
    mentions = tuple(mention for reading in found for mention in reading.mentions)
    return order == sorted(set(order)) and must <= set(order) and consistent(kind, mentions)
