"""mini-llava or mini-blip2 in plain transformers, on a CPU: exact answers about pictures that no training
shows. `python -m miniatures.training.answers.evaluate llava`, with `--easy-vqa` for the test questions of
that Python package, of which nothing is in the training data but how it asks.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch
from PIL import Image
from tokenizers import Tokenizer
from transformers import AutoModelForImageTextToText

from ..pictures.train import normalized
from .corpus import asked, tokenizer_of
from .pictures import ALL, drawn, small
from .questions import PictureQuestion, questions
from .vocabulary import PLACEHOLDER, SPECIAL

GOAL, EASY_GOAL = 0.95, 0.90
SEED, BATCH, LONGEST = 77, 32, 40


@dataclass(frozen=True)
class AnswerPair:
    """A picture as the model reads it, and a question."""

    picture: Image.Image
    question: PictureQuestion


class AnswerPeer:
    """A checkpoint in transformers, float32, greedy."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.kind, self.tokenizer = kind, tokenizer_of(folder)
        self.model: Any = AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32).eval()
        config = self.model.config
        self.rows = config.num_query_tokens if kind == "blip2" else config.image_seq_length

    def answers(self, pairs: Sequence[AnswerPair]) -> list[str]:
        """One for each."""
        parts = (pairs[at : at + BATCH] for at in range(0, len(pairs), BATCH))
        return [answer for part in parts for answer in self._answers(part)]

    @torch.no_grad()
    def _answers(self, pairs: Sequence[AnswerPair]) -> list[str]:
        rows = [ids(self.kind, self.tokenizer, self.rows, pair.question.text) for pair in pairs]
        pixels = normalized(torch.from_numpy(np.stack([np.asarray(one.picture) for one in pairs])))
        longest, pad = max(map(len, rows)), self.tokenizer.token_to_id("<pad>")
        padded = torch.tensor([[pad] * (longest - len(row)) + row for row in rows])
        made = self.model.generate(
            input_ids=padded,
            attention_mask=(padded != pad).long(),
            pixel_values=pixels,
            do_sample=False,
            max_new_tokens=LONGEST,
        )
        new = made if made.shape[1] <= LONGEST else made[:, longest:]
        return [self.tokenizer.decode(row.tolist()).strip() for row in new]


def ids(kind: str, tokenizer: Tokenizer, rows: int, text: str) -> list[int]:
    """A question's ids, with a placeholder for each row of the picture."""
    own = tokenizer.encode(asked(kind, text, first=True)).ids
    one = tokenizer.token_to_id(PLACEHOLDER)
    if kind == "blip2":
        return [one] * rows + own
    at = own.index(one)
    return [*own[:at], *[one] * rows, *own[at + 1 :]]


def held_out(count: int, seed: int = SEED) -> list[AnswerPair]:
    """Questions about scenes that no training picture shows, every kind of scene as often."""
    rng, found = Random(seed), list[AnswerPair]()
    while len(found) < count:
        scene, picture = drawn(rng, ALL[len(found) % len(ALL)], held=True)
        (question,) = islice(questions(scene, rng), 1)
        found.append(AnswerPair(small(picture), question))
    return found


def easy_vqa(count: int) -> list[AnswerPair]:
    """Its test questions, the first `count` of them in an order of chance."""
    from easy_vqa import get_test_image_paths, get_test_questions

    paths = get_test_image_paths()
    rows = list(zip(*get_test_questions(), strict=True))
    Random(SEED).shuffle(rows)
    found = []
    for text, answer, number in rows[:count]:
        picture = small(Image.open(paths[number]).convert("RGB"))
        found.append(AnswerPair(picture, PictureQuestion(text, answer, kind_of(answer))))
    return found


def kind_of(answer: str) -> str:
    """Of an answer of easy-vqa."""
    shapes = ("circle", "rectangle", "triangle")
    return "presence" if answer in ("yes", "no") else "shape" if answer in shapes else "colour"


def shares(pairs: Sequence[AnswerPair], answers: Sequence[str]) -> Iterator[tuple[str, int, float]]:
    """Kind of question, how many there were, and the share of exact answers; first of all together."""
    right = Counter[str]()
    there = Counter(pair.question.kind for pair in pairs)
    for pair, answer in zip(pairs, answers, strict=True):
        right[pair.question.kind] += answer == pair.question.answer
    yield "all", len(pairs), right.total() / len(pairs)
    for kind in sorted(there):
        yield kind, there[kind], right[kind] / there[kind]


def swapped(pairs: Sequence[AnswerPair]) -> list[AnswerPair]:
    """The same questions with the next question's picture."""
    return [AnswerPair(pairs[(n + 1) % len(pairs)].picture, pair.question) for n, pair in enumerate(pairs)]


def blind(pairs: Sequence[AnswerPair]) -> float:
    """The best share without the picture: the commonest answer to each question's wording."""
    by_text: dict[str, Counter[str]] = {}
    for pair in pairs:
        by_text.setdefault(pair.question.text, Counter())[pair.question.answer] += 1
    return sum(found.most_common(1)[0][1] for found in by_text.values()) / len(pairs)


def main() -> None:
    """Print one JSON line for all questions, one for each kind, and one with other pictures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=[*SPECIAL])
    parser.add_argument("--checkpoint", type=Path)
    parser.add_argument("--count", type=int, default=1000, help="questions")
    parser.add_argument("--easy-vqa", action="store_true", help="that data set instead of held-out scenes")
    given = parser.parse_args()
    peer = AnswerPeer(given.kind, given.checkpoint or Path("miniatures") / given.kind)
    pairs = easy_vqa(given.count) if given.easy_vqa else held_out(given.count)
    for kind, count, share in shares(pairs, peer.answers(pairs)):
        goal = {"wanted": EASY_GOAL if given.easy_vqa else GOAL} if kind == "all" else {}
        print(json.dumps({"kind": kind, "questions": count, "exact": round(share, 4), **goal}))
    (_, _, share), *_ = shares(pairs, peer.answers(swapped(pairs)))
    print(json.dumps({"with another picture": round(share, 4), "without any": round(blind(pairs), 4)}))


if __name__ == "__main__":
    main()
