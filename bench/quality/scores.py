"""Word error rates, with Whisper's own normalizer (openai/whisper normalizers/english.py), and which
utterances are missing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import jiwer
from whisper_normalizer.english import EnglishTextNormalizer

plain = EnglishTextNormalizer()


@dataclass(frozen=True)
class Score:
    """Errors in words; a rate is a share of `words`."""

    words: int = 0
    substituted: int = 0
    deleted: int = 0
    inserted: int = 0

    def __add__(self, other: Score) -> Score:
        """Of both texts together."""
        return Score(
            self.words + other.words,
            self.substituted + other.substituted,
            self.deleted + other.deleted,
            self.inserted + other.inserted,
        )

    @property
    def rate(self) -> float:
        """Word error rate in percent."""
        return 100 * (self.substituted + self.deleted + self.inserted) / self.words

    @property
    def lost(self) -> float:
        """Deleted words in percent."""
        return 100 * self.deleted / self.words

    def __str__(self) -> str:
        return f"{self.rate:5.2f} % ({self.deleted} deleted)"


def score(reference: str, text: str) -> Score:
    """Of a text against what was said."""
    found = jiwer.process_words([plain(reference)], [plain(text) or " "])
    words = found.hits + found.substitutions + found.deletions
    return Score(words, found.substitutions, found.deletions, found.insertions)


def lost(said: Sequence[str], text: str) -> list[str]:
    """Utterances of which more than half of the words are missing where they would stand."""
    words = [plain(one).split() for one in said]
    found = jiwer.process_words([" ".join(word for one in words for word in one)], [plain(text) or " "])
    missing = {
        i
        for chunk in found.alignments[0]
        if chunk.type == "delete"
        for i in range(chunk.ref_start_idx, chunk.ref_end_idx)
    }
    gone, at = [], 0
    for one, own in zip(said, words, strict=True):
        if sum(i in missing for i in range(at, at + len(own))) > len(own) / 2:
            gone.append(one)
        at += len(own)
    return gone
