"""Apply a request's sampling parameters to logits: penalties, bans, temperature, Whisper's rules. Plain
numpy, one row at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Looked = Callable[[], NDArray[np.float16]]  # see runtime.Step.attention
NEVER = np.float32(-1e9)


@dataclass(frozen=True)
class TimestampRules:
    """Whisper's timestamps in the vocabulary: ids from `first` (0.00 s) on are timestamps, ids below `end_id`
    are text.
    """

    first: int
    end_id: int
    latest_start: int = (
        50  # the first timestamp is at most 1 s (openai/whisper decoding.py, `max_initial_timestamp`)
    )

    def forbid(self, out: Floats, generated: Sequence[int]) -> None:
        """Set logits or log probabilities [vocabulary] that the rules forbid to NEVER (openai/whisper
        decoding.py, `ApplyTimestampRules`).

        Timestamps come in pairs, except for a single one right before the end; they never run backwards; the
        text starts with one; and where all timestamps together are likelier than any text token, a timestamp
        comes.
        """
        first = self.first
        times = [token for token in generated if token >= first]
        after_time = bool(generated) and generated[-1] >= first
        after_pair = after_time and (len(generated) < 2 or generated[-2] >= first)
        if not generated:
            out[:first] = NEVER
            out[first + self.latest_start + 1 :] = NEVER
        elif after_pair:
            out[first:] = NEVER
        elif after_time:
            out[: self.end_id] = NEVER
        if times:
            out[first : times[-1] + (0 if after_time and not after_pair else 1)] = NEVER
        if log_sum(out[first:]) > out[:first].max():
            out[:first] = NEVER


@dataclass(frozen=True)
class Sampling:
    """How to choose tokens. Names and meanings are those of TensorRT-LLM's input tensors (facts of the pinned
    release). `other_ends` are further ids that end a text.
    """

    max_tokens: int
    end_id: int
    other_ends: tuple[int, ...] = ()
    beam_width: int = 1
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 0.0
    seed: int = 0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    min_tokens: int = 0
    length_penalty: float = 1.0
    early_stopping: bool = False
    bias: Floats | None = None
    bad_words: tuple[tuple[int, ...], ...] = ()
    stop_words: tuple[tuple[int, ...], ...] = ()
    keep_logits: bool = False
    timestamps: TimestampRules | None = None

    @property
    def greedy(self) -> bool:
        """Tell whether the likeliest token is taken: without top_k and top_p, with top_k = 1, or at
        temperature 0.
        """
        return self.top_k == 1 or self.temperature == 0.0 or (self.top_k == 0 and self.top_p == 0.0)

    @property
    def plain(self) -> bool:
        """Tell whether nothing changes the logits, so that the likeliest token is the result."""
        return not self.changes and self.greedy and not self.keep_logits and not self.timestamps

    @property
    def changes(self) -> bool:
        """Tell whether `processed` does anything."""
        return bool(
            self.temperature not in (0.0, 1.0)
            or self.repetition_penalty != 1.0
            or self.presence_penalty
            or self.frequency_penalty
            or self.min_tokens
            or self.bad_words
        )

    def ending(self, ids: Sequence[int]) -> int:
        """Return how many of the last ids end the text and are removed from it: an end id, or a stop word."""
        if ids[-1] == self.end_id or ids[-1] in self.other_ends:
            return 1
        return ending(ids, self.stop_words)


@dataclass(frozen=True)
class Hypothesis:
    """Generated ids (without the end id), each one's log probability, their sum, and raw logits [ids,
    vocabulary] if requested. `seen` is the cross-attention of each id, of the best finished beam, if
    requested.
    """

    ids: tuple[int, ...] = ()
    log_probs: tuple[float, ...] = ()
    logits: tuple[Floats, ...] = ()
    cum_log_prob: float = 0.0
    finished: bool = False
    seen: Looked | None = None

    def plus(self, token: int, log_prob: float, sampling: Sampling, logits: Floats | None) -> Hypothesis:
        """Add one token. The end id, a stop word or the length limit finishes it; end id and stop word are
        removed.
        """
        ids = (*self.ids, token)
        over = sampling.ending(ids)
        kept = len(ids) - over
        return Hypothesis(
            ids[:kept],
            (*self.log_probs, log_prob)[:kept],
            self.logits if logits is None else (*self.logits, logits),
            self.cum_log_prob + log_prob,
            bool(over) or len(ids) >= sampling.max_tokens,
        )


@dataclass(frozen=True)
class Scores:
    """A step's result for a row whose id the caller chooses: all logits, and its cross-attention so far if
    requested, both computed only when called.
    """

    whole: Callable[[], Floats]
    looked: Callable[[], Looked] | None = None

    @property
    def logits(self) -> Floats:
        """Return float32 [vocabulary]."""
        return self.whole()


def ending(ids: Sequence[int], words: Sequence[tuple[int, ...]]) -> int:
    """Return how many of the last ids are a stop word, the longest if several match; 0 if none does."""
    return max((len(word) for word in words if tuple(ids[len(ids) - len(word) :]) == word), default=0)


def begun(ids: Sequence[int], words: Sequence[tuple[int, ...]]) -> int:
    """Return how many of the last ids may be the start of a word: the longest prefix of any word."""
    longest = max((len(word) for word in words), default=1) - 1
    return next(
        (
            n
            for n in range(min(longest, len(ids)), 0, -1)
            if any(word[:n] == tuple(ids[-n:]) and len(word) > n for word in words)
        ),
        0,
    )


def log_sum(logits: Floats) -> float:
    highest = float(logits.max())
    return highest + float(np.log(np.exp(logits - np.float32(highest)).sum()))


def log_softmax(logits: Floats) -> Floats:
    """Compute log(softmax) over the last axis, float32."""
    shifted: Floats = logits - logits.max(-1, keepdims=True)
    shifted -= np.log(np.exp(shifted).sum(-1, keepdims=True))
    return shifted


def processed(logits: Floats, history: Sequence[int], generated: Sequence[int], sampling: Sampling) -> Floats:
    """Apply temperature, penalties and bans to logits (which already include the bias), in the order of
    TensorRT-LLM's penalty kernels.

    `history` counts for the repetition penalty (prompt and generated ids; rows of a prompt table do not
    count); presence, frequency, bans and minimum length use `generated`.
    """
    out = logits.copy()
    if sampling.temperature not in (0.0, 1.0):
        out /= np.float32(sampling.temperature)
    if sampling.repetition_penalty != 1.0 and history:
        seen = np.unique(np.asarray(history))
        seen = seen[seen < len(out)]
        penalty = np.float32(sampling.repetition_penalty)
        out[seen] = np.where(out[seen] < 0, out[seen] * penalty, out[seen] / penalty)
    if generated and (sampling.presence_penalty or sampling.frequency_penalty):
        tokens, counts = np.unique(np.asarray(generated), return_counts=True)
        out[tokens] -= np.float32(sampling.presence_penalty) + np.float32(
            sampling.frequency_penalty
        ) * counts.astype(np.float32)
    if len(generated) < sampling.min_tokens and sampling.end_id >= 0:
        out[[sampling.end_id, *sampling.other_ends]] = NEVER
    for word in sampling.bad_words:
        if tuple(generated[len(generated) - len(word) + 1 :]) == word[:-1] or len(word) == 1:
            out[word[-1]] = NEVER
    return out
