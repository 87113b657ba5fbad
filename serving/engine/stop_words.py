"""End texts before a stop word. TensorRT-LLM's texts include the stop word (stopCriteriaKernels.cu counts
it), the portable engine's do not. Trimming here makes both alike; a result that ends otherwise is unchanged.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .sampling import begun, ending

Words = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class StreamedToken:
    """A token of a stream: id, and if requested log probability and logits float32 [vocabulary]."""

    token: int
    log_prob: float | None = None
    logits: NDArray[np.float32] | None = None


def words_in(word_list: NDArray[np.int32]) -> Words:
    """Split one list int32 [2, n] into words: all ids, and where each word ends, padded with -1
    (TensorRT-LLM's `convertWordList`).
    """
    ids, ends = word_list[0].tolist(), [int(end) for end in word_list[1] if end > 0]
    return tuple(tuple(ids[a:b]) for a, b in zip([0, *ends], ends, strict=False) if b > a)


def trimmed(tokens: NDArray[Any], lengths: NDArray[Any], words: Sequence[Words]) -> NDArray[np.int32]:
    """Return lengths int32 [rows, beams] of texts int32 [rows, beams, longest] without the stop word that
    ends them; `words` are those of each row.
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
    """Removes stop words from a stream: a possible start of one is held back until it is none."""

    words: Words
    held: list[StreamedToken] = field(default_factory=list)

    def add(self, tokens: Sequence[StreamedToken]) -> list[StreamedToken]:
        """Return what can be sent now."""
        whole = [*self.held, *tokens]
        ids = [token.token for token in whole]
        keep = max(begun(ids, self.words), ending(ids, self.words))
        self.held = whole[len(whole) - keep :]
        return whole[: len(whole) - keep]

    def rest(self) -> list[StreamedToken]:
        """Return what was held back and did not become a stop word."""
        held, self.held = self.held, []
        return held[: len(held) - ending([token.token for token in held], self.words)]
