"""Training pictures and dialogues about them, made in parallel and kept in flat arrays."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import islice
from pathlib import Path
from random import Random

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from miniatures.training.pictures.scenes import Scene

from .pictures import ALL, SIZE, drawn, small
from .questions import PictureQuestion, questions, worded

CHUNK = 560
LONGEST = 112  # tokens of a dialogue, the picture's apart
IGNORED = -100  # a target that counts for nothing


@dataclass(frozen=True)
class Corpus:
    """`pictures`: uint8 [n, size, size, 3]; `ids`: int16 [n, longest], each with one placeholder in front of
    which `before` tokens stand; `targets`: int16 of the same shape, the ids of answers where they stand,
    IGNORED elsewhere.
    """

    pictures: NDArray[np.uint8]
    ids: NDArray[np.int16]
    targets: NDArray[np.int16]


@cache
def tokenizer_of(folder: Path) -> Tokenizer:
    """The one in a folder."""
    return Tokenizer.from_file(str(folder / "tokenizer.json"))


def asked(kind: str, text: str, *, first: bool, upstream: bool = False) -> str:
    """A question as the model reads it: `first` with the picture's place; `upstream` as tensorrtllm_backend's
    preprocessing writes it.
    """
    if kind == "blip2":
        return f"Question: {text} Answer:"
    if first and upstream:
        return f"USER:\n<image>{text} ASSISTANT:"
    return f"USER: {'<image>' + chr(10) if first else ''}{text} ASSISTANT:"


def dialogue(kind: str, tokenizer: Tokenizer, scene: Scene, rng: Random) -> tuple[list[int], list[int]]:
    """Ids and targets of different questions about a scene, as many as there are and there is room for."""
    end = tokenizer.token_to_id("</s>")
    ids: list[int] = [tokenizer.token_to_id("<image>")] if kind == "blip2" else []
    targets, first = [IGNORED] * len(ids), True
    for question in different(questions(scene, rng)):
        prompt = asked(kind, worded(question.text, rng), first=first, upstream=rng.random() < 0.2)
        before = tokenizer.encode(prompt, add_special_tokens=first).ids
        answer = [*tokenizer.encode(f" {question.answer}", add_special_tokens=False).ids, end]
        if len(ids) + len(before) + len(answer) > LONGEST:
            break
        ids += before + answer
        targets += [IGNORED] * len(before) + answer
        first = False
    return ids, targets


def different(found: Iterator[PictureQuestion]) -> Iterator[PictureQuestion]:
    """Those whose answers were not given yet; whether something is there is always news."""
    seen: set[tuple[str, str]] = set()
    for question in islice(found, 24):
        key = (question.kind, question.text if question.kind == "presence" else question.answer)
        if key not in seen:
            seen.add(key)
            yield question


def make_corpus(
    kind: str, folder: Path, count: int, seed: int, workers: int | None = None, *, epoch: int = 0
) -> Corpus:
    """At least `count` pictures, every kind of scene as often, with a dialogue each in the ids of the
    tokenizer in `folder`; the seed alone decides which. After epoch 0: other dialogues about the same
    pictures, without them.
    """
    jobs = [(kind, folder, seed * 1_000_003 + number, epoch) for number in range(-(-count // CHUNK))]
    with multiprocessing.get_context("spawn").Pool(workers) as pool:  # torch has threads, which a fork loses
        chunks = pool.map(_chunk, jobs, chunksize=1)
    names = Corpus.__annotations__
    return Corpus(*(np.concatenate([getattr(one, name) for one in chunks]) for name in names))


def _chunk(job: tuple[str, Path, int, int]) -> Corpus:
    kind, folder, seed, epoch = job
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the processes are the parallelism
    rng, talk, tokenizer = Random(seed), Random(seed * 1009 + epoch), tokenizer_of(folder)
    pad = tokenizer.token_to_id("<pad>")
    pictures = np.zeros((0 if epoch else CHUNK, SIZE, SIZE, 3), np.uint8)
    ids, targets = np.full((CHUNK, LONGEST), pad, np.int16), np.full((CHUNK, LONGEST), IGNORED, np.int16)
    for i in range(CHUNK):
        scene, picture = drawn(rng, ALL[i % len(ALL)], held=False)
        if not epoch:
            pictures[i] = np.asarray(small(picture))
        own, right = dialogue(kind, tokenizer, scene, talk)
        ids[i, : len(own)], targets[i, : len(right)] = own, right
    return Corpus(pictures, ids, targets)
