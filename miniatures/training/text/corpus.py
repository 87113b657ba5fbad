"""Training texts as token ids, made in parallel and kept in flat arrays."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from .tasks import CHUNK, chunk


@dataclass(frozen=True)
class Corpus:
    """Texts back to back: text i is ids[starts[i]:starts[i + 1]], int16."""

    ids: NDArray[np.int16]
    starts: NDArray[np.int64]

    @classmethod
    def of(cls, rows: Sequence[Sequence[int]]) -> Corpus:
        """One text a row."""
        starts = np.concatenate([[0], np.cumsum([len(row) for row in rows])]).astype(np.int64)
        return cls(np.array([token for row in rows for token in row], np.int16), starts)

    @classmethod
    def joined(cls, parts: Sequence[Corpus]) -> Corpus:
        """All texts of several."""
        lengths = np.concatenate([part.lengths for part in parts])
        starts = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        return cls(np.concatenate([part.ids for part in parts]), starts)

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Tokens of each text."""
        return np.diff(self.starts)

    def padded(self, rows: NDArray[np.int64], pad: int) -> NDArray[np.int16]:
        """The texts `rows` as [rows, longest]."""
        lengths = self.lengths[rows]
        places = np.arange(lengths.max())
        tokens = self.ids[np.minimum(self.starts[rows][:, None] + places, len(self.ids) - 1)]
        return np.where(places < lengths[:, None], tokens, np.int16(pad))


@cache
def _tokenizer(folder: Path) -> Tokenizer:
    return Tokenizer.from_file(str(folder / "tokenizer.json"))


def _tokenized(job: tuple[str, Path, int]) -> tuple[Corpus, ...]:
    name, folder, seed = job
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the processes are the parallelism
    return tuple(
        Corpus.of([encoding.ids for encoding in _tokenizer(folder).encode_batch(texts)])
        for texts in zip(*chunk(name, seed), strict=True)
    )


def make_corpus(
    name: str, folder: Path, count: int, seed: int, workers: int | None = None
) -> tuple[Corpus, ...]:
    """At least `count` sources and as many targets, or documents, in the ids of the tokenizer in `folder`;
    the seed alone decides which.
    """
    jobs = [(name, folder, seed * 1_000_003 + i) for i in range(-(-count // CHUNK))]
    with multiprocessing.Pool(workers) as pool:
        parts = pool.map(_tokenized, jobs, chunksize=1)
    return tuple(Corpus.joined(side) for side in zip(*parts, strict=True))
