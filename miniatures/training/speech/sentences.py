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
from typing import NamedTuple

LEXICON: dict[str, list[list[str]]] = tomllib.loads(
    (Path(__file__).parent / "lexicon.toml").read_text("utf-8")
)
PLURALS_EN: dict[str, str] = LEXICON["plurals_en"]  # type: ignore[assignment]
PLURALS_ES: dict[str, str] = LEXICON["plurals_es"]  # type: ignore[assignment]
HELD_OUT_SHARE = 0.1

_UNITS_EN = [
    "zero",
    "one",
    "two",
    "three",
    "four",
    "five",
    "six",
    "seven",
    "eight",
    "nine",
    "ten",
    "eleven",
    "twelve",
    "thirteen",
    "fourteen",
    "fifteen",
    "sixteen",
    "seventeen",
    "eighteen",
    "nineteen",
]
_TENS_EN = ["_", "_", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]
_UNITS_ES = [
    "cero",
    "uno",
    "dos",
    "tres",
    "cuatro",
    "cinco",
    "seis",
    "siete",
    "ocho",
    "nueve",
    "diez",
    "once",
    "doce",
    "trece",
    "catorce",
    "quince",
    "dieciséis",
    "diecisiete",
    "dieciocho",
    "diecinueve",
    "veinte",
    "veintiuno",
    "veintidós",
    "veintitrés",
    "veinticuatro",
    "veinticinco",
    "veintiséis",
    "veintisiete",
    "veintiocho",
    "veintinueve",
]
_TENS_ES = ["_", "_", "_", "treinta", "cuarenta", "cincuenta", "sesenta", "setenta", "ochenta", "noventa"]
_ORDINALS = {
    1: "first",
    2: "second",
    3: "third",
    5: "fifth",
    8: "eighth",
    9: "ninth",
    12: "twelfth",
    20: "twentieth",
    30: "thirtieth",
}


class Sentence(NamedTuple):
    """One sentence in both languages."""

    en: str
    es: str

    @property
    def held_out(self) -> bool:
        """True when no training clip may contain this sentence."""
        return hashlib.sha256(self.en.encode()).digest()[0] < 256 * HELD_OUT_SHARE


def number(n: int) -> Sentence:
    """The cardinal 0..999 in words."""
    if n >= 100:
        hundreds_es = {1: "ciento", 5: "quinientos", 7: "setecientos", 9: "novecientos"}.get(
            n // 100, f"{_UNITS_ES[n // 100]}cientos"
        )
        head = Sentence(f"{_UNITS_EN[n // 100]} hundred", "cien" if n == 100 else hundreds_es)
        if n % 100 == 0:
            return head
        tail = number(n % 100)
        return Sentence(f"{head.en} {tail.en}", f"{head.es} {tail.es}")
    en = _UNITS_EN[n] if n < 20 else _TENS_EN[n // 10] + (f"-{_UNITS_EN[n % 10]}" if n % 10 else "")
    es = _UNITS_ES[n] if n < 30 else _TENS_ES[n // 10] + (f" y {_UNITS_ES[n % 10]}" if n % 10 else "")
    return Sentence(en, es)


def ordinal(n: int) -> str:
    """The English ordinal 1..31 in words."""
    if n in _ORDINALS:
        return _ORDINALS[n]
    return (
        f"{_UNITS_EN[n]}th"
        if n < 20
        else f"{_TENS_EN[n // 10]}-{_ORDINALS.get(n % 10, _UNITS_EN[n % 10] + 'th')}"
    )


def _plural_es(word: str) -> str:
    return PLURALS_ES.get(word) or word + ("s" if word[-1] in "aeiouéó" else "es")


def _the(row: Sequence[str]) -> str:
    return ("la " if row[2] == "f" else "el ") + row[1]


def _a(row: Sequence[str]) -> str:
    return ("una " if row[2] == "f" else "un ") + row[1]


def _agree(adjective: Sequence[str], noun: Sequence[str]) -> str:
    return adjective[2 if noun[2] == "f" else 1]


def _of(spanish: str) -> str:
    return spanish.replace(" de el ", " del ").replace(" a el ", " al ")


class Draw:
    """Random choices from the lexicon; each method returns one row or a rendered pair."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng

    def __getattr__(self, table: str) -> list[str]:
        return self.rng.choice(LEXICON[table])

    def described(self) -> Sentence:
        """A thing or animal with the definite article and a colour or quality."""
        noun = self.rng.choice(LEXICON["things"] + LEXICON["openings"])
        adjective = self.rng.choice(LEXICON["colours"] + LEXICON["qualities"])
        return Sentence(f"the {adjective[0]} {noun[0]}", f"{_the(noun)} {_agree(adjective, noun)}")

    def counted(self) -> Sentence:
        """Two or more things, foods or animals."""
        noun = self.rng.choice(LEXICON["things"] + LEXICON["foods"] + LEXICON["animals"])
        n = number(self.rng.choice([*range(2, 21), 30, 40, 50, 60, 70, 80, 90]))
        return Sentence(f"{n.en} {PLURALS_EN.get(noun[0], noun[0] + 's')}", f"{n.es} {_plural_es(noun[1])}")

    def clock(self) -> Sentence:
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
        return Sentence(en.format(number(hour).en), "las " + es.format(number(hour).es))

    def below(self, top: int) -> Sentence:
        """A cardinal from 0 to top - 1."""
        return number(self.rng.randrange(top))


def _in_place(d: Draw) -> Sentence:
    what, place = d.described(), d.places
    return Sentence(f"{what.en} is in the {place[0]}.", f"{what.es} está en {_the(place)}.")


def _has(d: Draw) -> Sentence:
    name, many = d.names, d.counted()
    return Sentence(f"{name[0]} has {many.en}.", f"{name[1]} tiene {many.es}.")


def _switch(d: Draw) -> Sentence:
    device, place = d.switches, d.places
    en, es = d.rng.choice([("on", "Enciende"), ("off", "Apaga")])
    return Sentence(f"Turn {en} the {device[0]} in the {place[0]}.", f"{es} {_the(device)} de {_the(place)}.")


def _date(d: Draw) -> Sentence:
    day, month, n = d.days, d.months, d.rng.randint(2, 31)
    return Sentence(
        f"Today is {day[0]}, the {ordinal(n)} of {month[0]}.",
        f"Hoy es {day[1]}, {number(n).es} de {month[1]}.",
    )


def _leaves(d: Draw) -> Sentence:
    time = d.clock()
    (en, es) = d.rng.choice(
        [("train", "El tren"), ("bus", "El autobús"), ("ship", "El buque"), ("plane", "El avión")]
    )
    verb = d.rng.choice([("leaves", "sale"), ("arrives", "llega")])
    return Sentence(f"the {en} {verb[0]} at {time.en}.", f"{es} {verb[1]} a {time.es}.")


def _waiting(d: Draw) -> Sentence:
    (one, two), place = d.rng.sample(LEXICON["names"], 2), d.places
    return Sentence(
        f"{one[0]} and {two[0]} are waiting at the {place[0]}.",
        f"{one[1]} y {two[1]} están esperando en {_the(place)}.",
    )


def _job(d: Draw) -> Sentence:
    who, job, place = d.relatives, d.jobs, d.places
    return Sentence(
        f"My {who[0]} works as a{'n' if job[0][0] == 'e' else ''} {job[0]} in the {place[0]}.",
        f"Mi {who[1]} trabaja como {_agree(job, who)} en {_the(place)}.",
    )


def _digits(d: Draw) -> Sentence:
    digits = [number(d.rng.randrange(10)) for _ in range(d.rng.randint(3, 6))]
    return Sentence(
        "The number is " + " ".join(n.en for n in digits) + ".",
        "El número es " + " ".join(n.es for n in digits) + ".",
    )


def _sum(d: Draw) -> Sentence:
    a, b = d.rng.randrange(100), d.rng.randrange(100)
    x, y, z = number(a), number(b), number(a + b)
    return Sentence(f"{x.en} plus {y.en} is {z.en}.", f"{x.es} más {y.es} son {z.es}.")


def _weather(d: Draw) -> Sentence:
    sky, place, when = d.weather, d.places, d.times_of_day
    return Sentence(f"{sky[0]} at the {place[0]} {when[0]}.", f"{sky[1]} en {_the(place)} {when[1]}.")


def _fetch(d: Draw) -> Sentence:
    order, one, two = d.orders, d.described(), d.things
    return Sentence(f"{order[0]} {one.en} and the {two[0]}.", f"{order[1]} {one.es} y {_the(two)}.")


def _where(d: Draw) -> Sentence:
    what = d.described()
    return Sentence(f"Where is {what.en}?", f"¿Dónde está {what.es}?")


def _price(d: Draw) -> Sentence:
    what, n = d.described(), number(d.rng.choice([*range(2, 21), *range(25, 100, 5), *range(100, 1000, 50)]))
    return Sentence(f"{what.en} costs {n.en} euros.", f"{what.es} cuesta {n.es} euros.")


def _call(d: Draw) -> Sentence:
    name, time, day = d.names, d.clock(), d.days
    return Sentence(
        f"Call {name[0]} on {day[0]} at {time.en}.", f"Llama a {name[1]} el {day[1]} a {time.es}."
    )


def _buy(d: Draw) -> Sentence:
    many, place = d.counted(), d.places
    return Sentence(
        f"I want to buy {many.en} near the {place[0]}.",
        _of(f"Quiero comprar {many.es} cerca de {_the(place)}."),
    )


def _forbid(d: Draw) -> Sentence:
    verb, what = d.refusals, d.described()
    return Sentence(f"Do not {verb[0]} {what.en}.", f"No {verb[1]} {what.es}.")


def _animal(d: Draw) -> Sentence:
    animal, doing, where, thing = d.animals, d.doings, d.positions, d.things
    return Sentence(
        f"The {animal[0]} {doing[0]} {where[0]} the {thing[0]}.",
        _of(f"{_the(animal)} {doing[1]} {where[1]} {_the(thing)}."),
    )


def _feeling(d: Draw) -> Sentence:
    name, feeling, when = d.names, d.feelings, d.times_of_day
    return Sentence(
        f"{name[0]} is {feeling[0]} {when[0]}.", f"{name[1]} está {_agree(feeling, name)} {when[1]}."
    )


def _open(d: Draw) -> Sentence:
    opening, place = d.openings, d.places
    en, es = d.rng.choice([("Open", "Abre"), ("Close", "Cierra")])
    return Sentence(
        f"{en} the {opening[0]} of the {place[0]}.", _of(f"{es} {_the(opening)} de {_the(place)}.")
    )


def _saw(d: Draw) -> Sentence:
    name, animal, colour, place = d.names, d.animals, d.colours, d.places
    return Sentence(
        f"{name[0]} saw a {colour[0]} {animal[0]} in the {place[0]}.",
        f"{name[1]} vio {_a(animal)} {_agree(colour, animal)} en {_the(place)}.",
    )


def _phrase(d: Draw) -> Sentence:
    phrase, name = d.phrases, d.names
    return Sentence(f"{phrase[0]}, {name[0]}.", f"{phrase[1]}, {name[1]}.")


def _short(d: Draw) -> Sentence:
    phrase = d.phrases
    return Sentence(f"{phrase[0]}.", f"{phrase[1]}.")


def _short_order(d: Draw) -> Sentence:
    order, thing = d.orders, d.rng.choice(LEXICON["things"] + LEXICON["foods"])
    return Sentence(f"{order[0]} the {thing[0]}.", f"{order[1]} {_the(thing)}.")


TEMPLATES: tuple[Callable[[Draw], Sentence], ...] = (
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


def draw(rng: random.Random, *, held_out: bool) -> Sentence:
    """A random sentence of the wanted split.

    The few fixed phrases belong to training only: who has heard no more than "Come here, Martin." cannot know
    that "Come here." is whole.
    """
    while True:
        template = rng.choice(TEMPLATES)
        pair = template(Draw(rng))
        pair = Sentence(_capital(pair.en), _capital(_of(pair.es)))
        if held_out == (pair.held_out and template is not _short):
            return pair
