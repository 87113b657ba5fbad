"""Parallel English and Spanish sentences of a small closed world, drawn at random and split for training and
test.

Everything a sentence can contain, and the forms of sentences, stand in `lexicon.toml`; this module only draws
words and makes Spanish agree. A sentence belongs to the held-out part by a hash of its English text, so no
split file has to be kept.
"""

from __future__ import annotations

import hashlib
import random
import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

LEXICON: dict[str, Any] = tomllib.loads((Path(__file__).parent / "lexicon.toml").read_text("utf-8"))
UNITS_EN, UNITS_ES = LEXICON["units_en"], LEXICON["units_es"]
TENS_EN, TENS_ES = (dict(enumerate(LEXICON[f"tens_{code}"], first)) for code, first in (("en", 2), ("es", 3)))
ARTICLES = {"the": ("el", "la"), "a": ("un", "una")}  # Spanish, masculine and feminine
SLOT = re.compile(r"\{(\w+)(?:\.(\w+))?\}")
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


class SentenceDraw:
    """Random choices for the slots of sentences: methods of this class, else tables of the lexicon."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng

    def slot(self, name: str) -> Sequence[str]:
        """A row of a table, or a rendered pair."""
        method = getattr(self, name, None)
        return method() if method else self.rng.choice(LEXICON[name])

    def described(self) -> SpokenSentence:
        """A thing or animal with the definite article and a colour or quality."""
        noun = self.rng.choice(LEXICON["things"] + LEXICON["openings"])
        drawn = {"noun": noun, "adjective": self.rng.choice(LEXICON["colours"] + LEXICON["qualities"])}
        return _worded("the {adjective} {noun}", "{noun.the} {adjective.noun}", drawn)

    def goods(self) -> Sequence[str]:
        """A thing or food."""
        return self.rng.choice(LEXICON["things"] + LEXICON["foods"])

    def counted(self) -> SpokenSentence:
        """Two or more things, foods or animals."""
        noun = self.rng.choice(LEXICON["things"] + LEXICON["foods"] + LEXICON["animals"])
        n = number(self.rng.choice([*range(2, 21), 30, 40, 50, 60, 70, 80, 90]))
        plural_en = LEXICON["plurals_en"].get(noun[0], noun[0] + "s")
        ending = "s" if noun[1][-1] in "aeiouéó" else "es"
        plural_es = LEXICON["plurals_es"].get(noun[1]) or noun[1] + ending
        return SpokenSentence(f"{n.en} {plural_en}", f"{n.es} {plural_es}")

    def clock(self) -> SpokenSentence:
        """A time of day, such as half past seven."""
        hour = number(self.rng.randint(2, 12))
        en, es = self.slot("clock_times")
        return SpokenSentence(en.format(hour.en), "las " + es.format(hour.es))

    def company(self) -> SpokenSentence:
        """Two people."""
        one, two = self.rng.sample(LEXICON["names"], 2)
        return SpokenSentence(f"{one[0]} and {two[0]}", f"{one[1]} y {two[1]}")

    def day_of_month(self) -> SpokenSentence:
        """From the second on; in Spanish a cardinal."""
        n = self.rng.randint(2, 31)
        return SpokenSentence(ordinal(n), number(n).es)

    def digits(self) -> SpokenSentence:
        """Three to six digits."""
        digits = [number(self.rng.randrange(10)) for _ in range(self.rng.randint(3, 6))]
        return SpokenSentence(" ".join(n.en for n in digits), " ".join(n.es for n in digits))

    def addition(self) -> SpokenSentence:
        """Two numbers below a hundred and their sum."""
        a, b = self.rng.randrange(100), self.rng.randrange(100)
        x, y, z = number(a), number(b), number(a + b)
        return SpokenSentence(f"{x.en} plus {y.en} is {z.en}", f"{x.es} más {y.es} son {z.es}")

    def price(self) -> SpokenSentence:
        """A number of euros."""
        return number(self.rng.choice([*range(2, 21), *range(25, 100, 5), *range(100, 1000, 50)]))


def _worded(en: str, es: str, drawn: Mapping[str, Sequence[str]]) -> SpokenSentence:
    """Fill the slots of both languages, as `lexicon.toml` describes them."""

    def english(match: re.Match[str]) -> str:
        word = drawn[match[1]][0]
        return f"{'an' if word[0] in 'aeiou' else 'a'} {word}" if match[2] else word

    def spanish(match: re.Match[str]) -> str:
        row, form = drawn[match[1]], match[2]
        if form in ARTICLES:
            return f"{ARTICLES[form][row[2] == 'f']} {row[1]}"
        return row[2 if form and drawn[form][2] == "f" else 1]

    return SpokenSentence(SLOT.sub(english, en), SLOT.sub(spanish, es))


def _capital(text: str) -> str:
    first = 1 if text.startswith("¿") else 0
    return text[:first] + text[first].upper() + text[first + 1 :]


def draw(rng: random.Random, *, held_out: bool) -> SpokenSentence:
    """A random sentence of the wanted split.

    The few fixed phrases belong to training only: a model that knows no more than "Come here, Martin." cannot
    know that "Come here." is whole.
    """
    words = SentenceDraw(rng)
    while True:
        slots, en, es = rng.choice(LEXICON["sentences"])
        pair = _worded(en, es, {name: words.slot(name) for name in slots.split()})
        joined = pair.es.replace(" de el ", " del ").replace(" a el ", " al ")
        pair = SpokenSentence(_capital(pair.en), _capital(joined))
        if held_out == (pair.held_out and slots != "phrases"):
            return pair
