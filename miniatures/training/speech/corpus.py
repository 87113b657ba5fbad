"""A corpus of single spoken sentences, made in parallel and kept as one flat array."""

from __future__ import annotations

import multiprocessing
import random
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from .sentences import SpokenSentence, draw
from .voices import draw_voice, speak

LANGUAGES = ("en", "es")


@dataclass(frozen=True)
class Corpus:
    """Utterances back to back: `samples` int16 at 16 kHz, utterance i is samples[starts[i]:starts[i + 1]]."""

    samples: NDArray[np.int16]
    starts: NDArray[np.int64]
    sentences: list[SpokenSentence]
    languages: list[str]

    def wave(self, i: int) -> NDArray[np.float32]:
        """Utterance i as float32 in [-1, 1]."""
        return self.samples[self.starts[i] : self.starts[i + 1]].astype(np.float32) / 32768

    def save(self, path: Path) -> None:
        """Write one .npz file."""
        texts = {"sentences": np.array(self.sentences), "languages": np.array(self.languages)}
        np.savez(path, samples=self.samples, starts=self.starts, **texts)

    @classmethod
    def load(cls, path: Path) -> Corpus:
        """Read what `save` wrote."""
        with np.load(path) as data:
            sentences = [SpokenSentence(*row) for row in data["sentences"].tolist()]
            return cls(data["samples"], data["starts"], sentences, data["languages"].tolist())


def _utterance(job: tuple[int, bool, bool]) -> tuple[NDArray[np.int16], SpokenSentence, str]:
    seed, held_out, unseen_voice = job
    rng = random.Random(seed)
    language = rng.choice(LANGUAGES)
    sentence = draw(rng, held_out=held_out)
    spoken = speak(getattr(sentence, language), draw_voice(rng, language, unseen=unseen_voice))
    return (spoken * 32767).astype(np.int16), sentence, language


def make_corpus(
    count: int, seed: int, *, held_out: bool = False, unseen_voices: bool = False, workers: int | None = None
) -> Corpus:
    """Speak `count` random sentences; the result depends on the seed alone, not on the number of workers."""
    jobs = [(seed * 100_000_007 + i, held_out, unseen_voices) for i in range(count)]
    with multiprocessing.Pool(workers) as pool:
        rows = pool.map(_utterance, jobs, chunksize=64)
    waves = [row[0] for row in rows]
    starts = np.concatenate([[0], np.cumsum([len(wave) for wave in waves])]).astype(np.int64)
    return Corpus(np.concatenate(waves), starts, [row[1] for row in rows], [row[2] for row in rows])
