"""Compute word error rates with Whisper's own normalizer (openai/whisper normalizers/english.py), and find
missing utterances.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import jiwer
import numpy as np
from whisper_normalizer.english import EnglishTextNormalizer

PLAIN = EnglishTextNormalizer()


@dataclass(frozen=True)
class Score:
    """Counts of words: of the reference, wrong ones (substituted, deleted, inserted), deleted ones."""

    words: int = 0
    wrong: int = 0
    deleted: int = 0

    def __add__(self, other: Score) -> Score:
        """Add the counts of both texts."""
        return Score(self.words + other.words, self.wrong + other.wrong, self.deleted + other.deleted)

    @property
    def rate(self) -> float:
        """Return the word error rate in percent."""
        return 100 * self.wrong / self.words

    @property
    def lost(self) -> float:
        """Return deleted words in percent."""
        return 100 * self.deleted / self.words

    def __str__(self) -> str:
        return f"{self.rate:5.2f} % ({self.deleted} deleted)"


def score(reference: str, text: str) -> Score:
    """Compare a text with its reference."""
    found = jiwer.process_words([PLAIN(reference)], [PLAIN(text) or " "])
    missed = found.substitutions + found.deletions
    return Score(found.hits + missed, missed + found.insertions, found.deletions)


def interval(scores: Sequence[Score], samples: int = 2000) -> tuple[float, float]:
    """Return the 95 % confidence interval of the word error rate over recordings, by resampling them."""
    wrong = np.array([(one.wrong, one.words) for one in scores])
    drawn = wrong[np.random.default_rng(1).integers(len(wrong), size=(samples, len(wrong)))].sum(1)
    low, high = np.quantile(100 * drawn[:, 0] / drawn[:, 1], (0.025, 0.975))
    return round(float(low), 2), round(float(high), 2)


def lost(spoken: Sequence[str], text: str) -> list[str]:
    """Return utterances of which more than half of the words are missing."""
    words = [PLAIN(one).split() for one in spoken]
    found = jiwer.process_words([" ".join(word for one in words for word in one)], [PLAIN(text) or " "])
    missing = {
        i
        for chunk in found.alignments[0]
        if chunk.type == "delete"
        for i in range(chunk.ref_start_idx, chunk.ref_end_idx)
    }
    gone, at = [], 0
    for one, own in zip(spoken, words, strict=True):
        if sum(i in missing for i in range(at, at + len(own))) > len(own) / 2:
            gone.append(one)
        at += len(own)
    return gone
