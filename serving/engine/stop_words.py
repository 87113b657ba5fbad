"""Texts that end before a stop word. TensorRT-LLM ends a text with the word that stopped it
(stopCriteriaKernels.cu counts it in); the portable engine leaves it out. Cutting here makes both alike: an
answer that ends otherwise passes unchanged.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .sampling import begun

Words = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Said:
    """A token of a stream: its id, its log probability if asked for, and its logits float32 [vocabulary] if
    asked for.
    """

    token: int
    log_prob: float | None = None
    logits: NDArray[np.float32] | None = None


def words_in(word_list: NDArray[np.int32]) -> Words:
    """The words of one list int32 [2, n]: all ids back to back, and where each word ends, filled up with -1
    (TensorRT-LLM's `convertWordList`).
    """
    ids, ends = word_list[0].tolist(), [int(end) for end in word_list[1] if end > 0]
    return tuple(tuple(ids[a:b]) for a, b in zip([0, *ends], ends, strict=False) if b > a)


def ending(ids: Sequence[int], words: Words) -> int:
    """How many of the last ids are a stop word; the longest counts, 0 if none is there."""
    return max((len(word) for word in words if tuple(ids[len(ids) - len(word) :]) == word), default=0)


def trimmed(tokens: NDArray[Any], lengths: NDArray[Any], words: Sequence[Words]) -> NDArray[np.int32]:
    """Lengths int32 [rows, beams] of texts int32 [rows, beams, longest] without the stop word that ends them;
    `words` are those of each row.
    """
    return np.array(
        [
            [n - ending(ids[:n].tolist(), own) for ids, n in zip(row, ns, strict=True)]
            for row, ns, own in zip(tokens, lengths, words, strict=True)
        ],
        np.int32,
    )


@dataclass
class StopFilter:
    """A stream without its stop word: what may become one is held back until it is none."""

    words: Words
    held: list[Said] = field(default_factory=list)

    def add(self, tokens: Sequence[Said]) -> list[Said]:
        """What can be shown now."""
        whole = [*self.held, *tokens]
        ids = [said.token for said in whole]
        keep = max(begun(ids, self.words), ending(ids, self.words))
        self.held = whole[len(whole) - keep :]
        return whole[: len(whole) - keep]

    def rest(self) -> list[Said]:
        """What was held back and is not a stop word after all."""
        held, self.held = self.held, []
        return held[: len(held) - ending([said.token for said in held], self.words)]
