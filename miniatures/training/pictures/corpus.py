"""Training pictures and captions, made in parallel and kept in flat arrays."""

from __future__ import annotations

import multiprocessing
import os
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from tokenizers import Tokenizer

from .drawing import draw
from .scenes import KINDS, scene

CHUNK = 600
LONGEST = 40  # tokens of a caption


@dataclass(frozen=True)
class Corpus:
    """`pictures`: uint8 [n, size, size, 3]; `ids`: int16 [n, longest], padded with the end of text."""

    pictures: NDArray[np.uint8]
    ids: NDArray[np.int16]


@cache
def tokenizer_of(folder: Path) -> Tokenizer:
    """The one in a folder, padding with its end of text."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.enable_padding(pad_id=tokenizer.get_vocab_size() - 1, length=LONGEST)
    return tokenizer


def make_corpus(folder: Path, count: int, size: int, seed: int, workers: int | None = None) -> Corpus:
    """At least `count` pictures, every kind of scene as often, and their captions in the ids of the tokenizer
    in `folder`; the seed alone decides which.
    """
    jobs = [(folder, size, seed * 1_000_003 + number) for number in range(-(-count // CHUNK))]
    pictures = np.empty((len(jobs) * CHUNK, size, size, 3), np.uint8)
    ids = np.empty((len(jobs) * CHUNK, LONGEST), np.int16)
    with multiprocessing.get_context("spawn").Pool(workers) as pool:  # torch has threads, which a fork loses
        for number, part in enumerate(pool.imap(_chunk, jobs)):
            rows = slice(number * CHUNK, (number + 1) * CHUNK)
            pictures[rows], ids[rows] = part.pictures, part.ids
    return Corpus(pictures, ids)


def _chunk(job: tuple[Path, int, int]) -> Corpus:
    folder, size, seed = job
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the processes are the parallelism
    rng = Random(seed)
    kinds = [*KINDS] * (CHUNK // len(KINDS))
    scenes = [scene(rng, kind, held=False) for kind in kinds]
    pictures = [draw(one, rng).resize((size, size), Image.Resampling.BICUBIC) for one in scenes]
    coded = tokenizer_of(folder).encode_batch([one.worded(rng) for one in scenes])
    ids = np.array([one.ids for one in coded], np.int16)
    return Corpus(np.stack([np.asarray(picture) for picture in pictures]), ids)
