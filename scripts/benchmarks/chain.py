"""The chain of a picture and a question in a running Conch: a vision-language model answers, its answer is
embedded, and the document that is nearest comes back with it. `python -m scripts.benchmarks.chain`, with
all-minilm-l6-v2 and mini-llava or mini-blip2 in MODEL_ID.

The museum (miniatures/pictures/museum.py): a document for each exhibit, its caption; with `--labels` a label
that has artist, year and hall as well. Only the document of the exhibit whose picture was sent is right,
whatever the model says of it. Beside it, where the chain loses what it loses: how many answers are the true
one word for word, and how many documents are found by the true one.

`--easy-vqa`: the test questions of that Python package about colours and shapes, and a document for each of
their answers; only that of the data set's own answer is right. (What is answered by yes or no has no document
to be found.)
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from openai import OpenAI

from miniatures.answers.questions import DESCRIBE
from miniatures.pictures.museum import PICTURES, museum

from .museum import encoded, filled, part

ARTISTS = ("Ada Bell", "Tomas Lindqvist", "Mei Tanaka", "Ruth Okafor", "Ivo Marchetti", "Sara Nunez")
SEED = 77
# What the answers of easy-vqa mean.
MEANINGS = {
    "circle": "A circle is a round shape: all its points are equally far from its centre.",
    "rectangle": "A rectangle is a shape with four sides and four right angles.",
    "triangle": "A triangle is a shape with three sides and three corners.",
    "black": "Black is the colour of coal and of a night without stars.",
    "gray": "Gray is the colour of ash and of a cloudy sky.",
    "red": "Red is the colour of blood and of ripe tomatoes.",
    "green": "Green is the colour of grass and of leaves in spring.",
    "blue": "Blue is the colour of a clear sky.",
    "yellow": "Yellow is the colour of lemons and of sunflowers.",
    "teal": "Teal is a colour between green and blue, called after a duck.",
    "brown": "Brown is the colour of chocolate and of the bark of trees.",
}


@dataclass(frozen=True)
class Case:
    """A question about a picture (a file's bytes), the number of the only right document, the true answer,
    and of what kind it is.
    """

    picture: Callable[[], bytes]
    question: str
    right: int
    truth: str
    kind: str


def label(number: int, caption: str) -> str:
    """What hangs beside an exhibit."""
    draw = Random(number)
    by, year, hall = draw.choice(ARTISTS), draw.randint(1850, 1990), draw.randint(1, 12)
    return f"{caption[0].upper()}{caption[1:]}.\n\n{by}, {year}. Hall {hall}, number {draw.randrange(10**5)}."


def of_museum(count: int, labels: bool) -> tuple[list[str], list[Case]]:
    """Documents, and a question about each exhibit."""
    exhibits, draw = museum(count), Random(SEED)
    documents = [label(n, one.caption) if labels else one.caption for n, one in enumerate(exhibits)]
    cases = [
        Case(partial(encoded, one), draw.choice(DESCRIBE), n, one.caption, one.kind)
        for n, one in enumerate(exhibits)
    ]
    return documents, cases


def of_easy_vqa(count: int) -> tuple[list[str], list[Case]]:
    """Documents, and the first `count` questions in an order of chance."""
    from easy_vqa import get_test_image_paths, get_test_questions  # type: ignore[import-untyped]

    paths = get_test_image_paths()
    rows = [row for row in zip(*get_test_questions(), strict=True) if row[1] in MEANINGS]
    Random(SEED).shuffle(rows)
    words = [*MEANINGS]
    cases = [
        Case(Path(paths[number]).read_bytes, text, words.index(answer), answer, kind_of(answer))
        for text, answer, number in rows[:count]
    ]
    return [*MEANINGS.values()], cases


def kind_of(answer: str) -> str:
    """Of easy-vqa."""
    return "shape" if answer in ("circle", "rectangle", "triangle") else "colour"


def measured(client: OpenAI, store: str, cases: Sequence[Case], model: str) -> list[dict[str, Any]]:
    """Shares of all cases together, and of each kind."""
    rows = []
    for case in cases:
        picture: Any = part(case.picture())  # the SDK's types know texts alone
        started = time.monotonic()
        answer = client.vector_stores.search(
            store,
            query=picture,
            max_num_results=1,
            extra_body={"question": case.question, "model": model},
        )
        seconds = time.monotonic() - started
        said = (answer.model_extra or {})["answer"]["text"]
        told = client.vector_stores.search(store, query=case.truth, max_num_results=1)
        right = [one.data[0].filename == f"{case.right}.txt" for one in (answer, told)]
        rows.append((case.kind, right[0], said == case.truth, right[1], seconds))
    return [shown(kind, [row for row in rows if kind in ("all", row[0])]) for kind in kinds(cases)]


def kinds(cases: Sequence[Case]) -> list[str]:
    """Of cases, after `all`."""
    return ["all", *sorted({case.kind for case in cases})]


def shown(kind: str, rows: Sequence[tuple[str, bool, bool, bool, float]]) -> dict[str, Any]:
    """Rows of one kind: whether the chain was right, the answer the true one, and right what that finds;
    seconds of the chain.
    """
    shares = {
        name: round(float(np.mean([bool(row[at]) for row in rows])), 4)
        for at, name in enumerate(("right", "answered word for word", "found by the true answer"), 1)
    }
    times = {f"p{at}_ms": round(1000 * float(np.percentile([row[4] for row in rows], at))) for at in (50, 99)}
    return {"kind": kind, "questions": len(rows), **shares, **times}


def main() -> None:
    """A line of JSON for all questions, and one for each kind."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="http://127.0.0.1:8080")
    parser.add_argument("--model", default="mini-llava")
    parser.add_argument("--count", type=int, default=PICTURES)
    parser.add_argument("--labels", action="store_true")
    parser.add_argument("--easy-vqa", action="store_true")
    given = parser.parse_args()
    client = OpenAI(base_url=f"{given.url}/v1", api_key="none", timeout=600, max_retries=10)
    documents, cases = of_easy_vqa(given.count) if given.easy_vqa else of_museum(given.count, given.labels)
    store, _ = filled(client, [one.encode() for one in documents], "txt")
    for row in measured(client, store, cases, given.model):
        print(json.dumps({"model": given.model, "documents": len(documents), **row}), flush=True)


if __name__ == "__main__":
    main()
