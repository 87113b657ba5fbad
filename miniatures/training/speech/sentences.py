"""Parallel English and Spanish sentences of a small closed world, drawn at random and split for training and
test.

Everything a sentence can contain stands in `lexicon.toml`; this module only arranges words and makes Spanish
agree. A sentence belongs to the held-out part by a hash of its English text, so no split file has to be kept.
"""

from __future__ import annotations

import hashlib
import random
import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

LEXICON: dict[str, Any] = tomllib.loads((Path(__file__).parent / "lexicon.toml").read_text("utf-8"))
UNITS_EN, UNITS_ES = LEXICON["units_en"], LEXICON["units_es"]
TENS_EN, TENS_ES = (dict(enumerate(LEXICON[f"tens_{code}"], first)) for code, first in (("en", 2), ("es", 3)))
HELD_OUT_SHARE = 0.1


def held_out(key: str) -> bool:
    """True when no training example may have this key."""
    return hashlib.sha256(key.encode()).digest()[0] < 256 * HELD_OUT_SHARE


class SpokenSentence(NamedTuple):
    """One sentence in both languages."""

    en: str
    es: str

    @property
    def held_out(self) -> bool:
        """True when no training clip may contain this sentence."""
        return held_out(self.en)


def number(n: int) -> SpokenSentence:
    """The cardinal 0..999 in words."""
    if n >= 100:
        irregular = {1: "ciento", 5: "quinientos", 7: "setecientos", 9: "novecientos"}
        hundreds_es = irregular.get(n // 100, f"{UNITS_ES[n // 100]}cientos")
        head = SpokenSentence(f"{UNITS_EN[n // 100]} hundred", "cien" if n == 100 else hundreds_es)
        if n % 100 == 0:
            return head
        tail = number(n % 100)
        return SpokenSentence(f"{head.en} {tail.en}", f"{head.es} {tail.es}")
    en = UNITS_EN[n] if n < 20 else TENS_EN[n // 10] + (f"-{UNITS_EN[n % 10]}" if n % 10 else "")
    es = UNITS_ES[n] if n < 30 else TENS_ES[n // 10] + (f" y {UNITS_ES[n % 10]}" if n % 10 else "")
    return SpokenSentence(en, es)


def ordinal(n: int) -> str:
    """The English ordinal 1..31 in words."""
    tens, own = (n // 10, n % 10) if n > 20 and n % 10 else (0, n)
    last = LEXICON["ordinals_en"].get(str(own)) or UNITS_EN[own] + "th"
    return f"{TENS_EN[tens]}-{last}" if tens else last


def _plural_es(word: str) -> str:
    return LEXICON["plurals_es"].get(word) or word + ("s" if word[-1] in "aeiouéó" else "es")


def _the(row: Sequence[str]) -> str:
    return ("la " if row[2] == "f" else "el ") + row[1]


def _a(row: Sequence[str]) -> str:
    return ("una " if row[2] == "f" else "un ") + row[1]


def _agree(adjective: Sequence[str], noun: Sequence[str]) -> str:
    return adjective[2 if noun[2] == "f" else 1]


def _of(spanish: str) -> str:
    return spanish.replace(" de el ", " del ").replace(" a el ", " al ")


class SentenceDraw:
    """Random choices from the lexicon; each method returns one row or a rendered pair."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng

    def __getattr__(self, table: str) -> list[str]:
        return self.rng.choice(LEXICON[table])

    def described(self) -> SpokenSentence:
        """A thing or animal with the definite article and a colour or quality."""
        noun = self.rng.choice(LEXICON["things"] + LEXICON["openings"])
        adjective = self.rng.choice(LEXICON["colours"] + LEXICON["qualities"])
        return SpokenSentence(f"the {adjective[0]} {noun[0]}", f"{_the(noun)} {_agree(adjective, noun)}")

    def counted(self) -> SpokenSentence:
        """Two or more things, foods or animals."""
        noun = self.rng.choice(LEXICON["things"] + LEXICON["foods"] + LEXICON["animals"])
        n = number(self.rng.choice([*range(2, 21), 30, 40, 50, 60, 70, 80, 90]))
        return SpokenSentence(
            f"{n.en} {LEXICON['plurals_en'].get(noun[0], noun[0] + 's')}", f"{n.es} {_plural_es(noun[1])}"
        )

    def clock(self) -> SpokenSentence:
        """A time of day, such as half past seven."""
        hour = self.rng.randint(2, 12)
        en, es = self.rng.choice(
            [
                ("{} o'clock", "{} en punto"),
                ("half past {}", "{} y media"),
                ("a quarter past {}", "{} y cuarto"),
                ("a quarter to {}", "{} menos cuarto"),
            ]
        )
        return SpokenSentence(en.format(number(hour).en), "las " + es.format(number(hour).es))

    def below(self, top: int) -> SpokenSentence:
        """A cardinal from 0 to top - 1."""
        return number(self.rng.randrange(top))


def _in_place(d: SentenceDraw) -> SpokenSentence:
    what, place = d.described(), d.places
    return SpokenSentence(f"{what.en} is in the {place[0]}.", f"{what.es} está en {_the(place)}.")


def _has(d: SentenceDraw) -> SpokenSentence:
    name, many = d.names, d.counted()
    return SpokenSentence(f"{name[0]} has {many.en}.", f"{name[1]} tiene {many.es}.")


def _switch(d: SentenceDraw) -> SpokenSentence:
    device, place = d.switches, d.places
    en, es = d.rng.choice([("on", "Enciende"), ("off", "Apaga")])
    return SpokenSentence(
        f"Turn {en} the {device[0]} in the {place[0]}.", f"{es} {_the(device)} de {_the(place)}."
    )


def _date(d: SentenceDraw) -> SpokenSentence:
    day, month, n = d.days, d.months, d.rng.randint(2, 31)
    return SpokenSentence(
        f"Today is {day[0]}, the {ordinal(n)} of {month[0]}.",
        f"Hoy es {day[1]}, {number(n).es} de {month[1]}.",
    )


def _leaves(d: SentenceDraw) -> SpokenSentence:
    time = d.clock()
    (en, es) = d.rng.choice(
        [("train", "El tren"), ("bus", "El autobús"), ("ship", "El buque"), ("plane", "El avión")]
    )
    verb = d.rng.choice([("leaves", "sale"), ("arrives", "llega")])
    return SpokenSentence(f"the {en} {verb[0]} at {time.en}.", f"{es} {verb[1]} a {time.es}.")


def _waiting(d: SentenceDraw) -> SpokenSentence:
    (one, two), place = d.rng.sample(LEXICON["names"], 2), d.places
    return SpokenSentence(
        f"{one[0]} and {two[0]} are waiting at the {place[0]}.",
        f"{one[1]} y {two[1]} están esperando en {_the(place)}.",
    )


def _job(d: SentenceDraw) -> SpokenSentence:
    who, job, place = d.relatives, d.jobs, d.places
    return SpokenSentence(
        f"My {who[0]} works as a{'n' if job[0][0] == 'e' else ''} {job[0]} in the {place[0]}.",
        f"Mi {who[1]} trabaja como {_agree(job, who)} en {_the(place)}.",
    )


def _digits(d: SentenceDraw) -> SpokenSentence:
    digits = [number(d.rng.randrange(10)) for _ in range(d.rng.randint(3, 6))]
    return SpokenSentence(
        "The number is " + " ".join(n.en for n in digits) + ".",
        "El número es " + " ".join(n.es for n in digits) + ".",
    )


def _sum(d: SentenceDraw) -> SpokenSentence:
    a, b = d.rng.randrange(100), d.rng.randrange(100)
    x, y, z = number(a), number(b), number(a + b)
    return SpokenSentence(f"{x.en} plus {y.en} is {z.en}.", f"{x.es} más {y.es} son {z.es}.")


def _weather(d: SentenceDraw) -> SpokenSentence:
    sky, place, when = d.weather, d.places, d.times_of_day
    return SpokenSentence(f"{sky[0]} at the {place[0]} {when[0]}.", f"{sky[1]} en {_the(place)} {when[1]}.")


def _fetch(d: SentenceDraw) -> SpokenSentence:
    order, one, two = d.orders, d.described(), d.things
    return SpokenSentence(f"{order[0]} {one.en} and the {two[0]}.", f"{order[1]} {one.es} y {_the(two)}.")


def _where(d: SentenceDraw) -> SpokenSentence:
    what = d.described()
    return SpokenSentence(f"Where is {what.en}?", f"¿Dónde está {what.es}?")


def _price(d: SentenceDraw) -> SpokenSentence:
    what, n = d.described(), number(d.rng.choice([*range(2, 21), *range(25, 100, 5), *range(100, 1000, 50)]))
    return SpokenSentence(f"{what.en} costs {n.en} euros.", f"{what.es} cuesta {n.es} euros.")


def _call(d: SentenceDraw) -> SpokenSentence:
    name, time, day = d.names, d.clock(), d.days
    return SpokenSentence(
        f"Call {name[0]} on {day[0]} at {time.en}.", f"Llama a {name[1]} el {day[1]} a {time.es}."
    )


def _buy(d: SentenceDraw) -> SpokenSentence:
    many, place = d.counted(), d.places
    return SpokenSentence(
        f"I want to buy {many.en} near the {place[0]}.",
        _of(f"Quiero comprar {many.es} cerca de {_the(place)}."),
    )


def _forbid(d: SentenceDraw) -> SpokenSentence:
    verb, what = d.refusals, d.described()
    return SpokenSentence(f"Do not {verb[0]} {what.en}.", f"No {verb[1]} {what.es}.")


def _animal(d: SentenceDraw) -> SpokenSentence:
    animal, doing, where, thing = d.animals, d.doings, d.positions, d.things
    return SpokenSentence(
        f"The {animal[0]} {doing[0]} {where[0]} the {thing[0]}.",
        _of(f"{_the(animal)} {doing[1]} {where[1]} {_the(thing)}."),
    )


def _feeling(d: SentenceDraw) -> SpokenSentence:
    name, feeling, when = d.names, d.feelings, d.times_of_day
    return SpokenSentence(
        f"{name[0]} is {feeling[0]} {when[0]}.", f"{name[1]} está {_agree(feeling, name)} {when[1]}."
    )


def _open(d: SentenceDraw) -> SpokenSentence:
    opening, place = d.openings, d.places
    en, es = d.rng.choice([("Open", "Abre"), ("Close", "Cierra")])
    return SpokenSentence(
        f"{en} the {opening[0]} of the {place[0]}.", _of(f"{es} {_the(opening)} de {_the(place)}.")
    )


def _saw(d: SentenceDraw) -> SpokenSentence:
    name, animal, colour, place = d.names, d.animals, d.colours, d.places
    return SpokenSentence(
        f"{name[0]} saw a {colour[0]} {animal[0]} in the {place[0]}.",
        f"{name[1]} vio {_a(animal)} {_agree(colour, animal)} en {_the(place)}.",
    )


def _phrase(d: SentenceDraw) -> SpokenSentence:
    phrase, name = d.phrases, d.names
    return SpokenSentence(f"{phrase[0]}, {name[0]}.", f"{phrase[1]}, {name[1]}.")


def _short(d: SentenceDraw) -> SpokenSentence:
    phrase = d.phrases
    return SpokenSentence(f"{phrase[0]}.", f"{phrase[1]}.")


def _short_order(d: SentenceDraw) -> SpokenSentence:
    order, thing = d.orders, d.rng.choice(LEXICON["things"] + LEXICON["foods"])
    return SpokenSentence(f"{order[0]} the {thing[0]}.", f"{order[1]} {_the(thing)}.")


TEMPLATES: tuple[Callable[[SentenceDraw], SpokenSentence], ...] = (
    _in_place,
    _has,
    _switch,
    _date,
    _leaves,
    _waiting,
    _job,
    _digits,
    _sum,
    _weather,
    _fetch,
    _where,
    _price,
    _call,
    _buy,
    _forbid,
    _animal,
    _feeling,
    _open,
    _saw,
    _phrase,
    _short,
    _short_order,
)


def _capital(text: str) -> str:
    first = 1 if text.startswith("¿") else 0
    return text[:first] + text[first].upper() + text[first + 1 :]


def draw(rng: random.Random, *, held_out: bool) -> SpokenSentence:
    """A random sentence of the wanted split.

    The few fixed phrases belong to training only: who has heard no more than "Come here, Martin." cannot know
    that "Come here." is whole.
    """
    while True:
        template = rng.choice(TEMPLATES)
        pair = template(SentenceDraw(rng))
        pair = SpokenSentence(_capital(pair.en), _capital(_of(pair.es)))
        if held_out == (pair.held_out and template is not _short):
            return pair
