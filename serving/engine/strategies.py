"""Decoding strategies: greedy or sampled single sequences, and beam search.

A strategy owns one request's rows in the running batch. After each decoder step it gets the logits of its
rows and returns the rows to continue as (parent row, token); the scheduler reorders the caches accordingly.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from .guidance import Guide
from .sampling import Floats, Hypothesis, Sampling, Scores, log_softmax, log_sum, processed


def _draw(log_probs: Floats, sampling: Sampling, random: np.random.Generator) -> int:
    """Draw a token from the top k, then from the smallest set that holds top_p of the probability."""
    order = np.argsort(-log_probs, kind="stable")[: sampling.top_k or None]
    weights = np.exp(log_probs[order].astype(np.float64))
    weights /= weights.sum()
    if 0.0 < sampling.top_p < 1.0:
        keep = int(np.searchsorted(np.cumsum(weights), sampling.top_p)) + 1
        order, weights = order[:keep], weights[:keep] / weights[:keep].sum()
    return int(random.choice(order, p=weights))


BLOCK = 64  # of the values of which only the largest is looked at first


def highest(values: Floats, count: int) -> NDArray[np.int64]:
    """Return the positions of the `count` largest of float32 [n], largest first, ties in order.

    They lie at or above the `count`-th largest of the blocks' maxima, which leaves few to sort: 0.4 ms where
    `np.argpartition` takes 3.1 (five beams of 51,865 ids, one core of an EPYC).
    """
    block = max(1, min(BLOCK, len(values) // count))
    maxima = values[: len(values) // block * block].reshape(-1, block).max(1)
    least = np.partition(maxima, len(maxima) - count)[len(maxima) - count]
    places = np.flatnonzero(values >= least)
    return places[np.argsort(-values[places], kind="stable")][:count]


@dataclass
class Single:
    """One row, greedy or sampled."""

    prompt: Sequence[int]
    sampling: Sampling
    guide: Guide | None = None
    ids: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)
    logits: list[Floats] = field(default_factory=list)
    total: float = 0.0
    finished: bool = False

    @cached_property
    def random(self) -> np.random.Generator:
        """Return the random generator for its seed."""
        return np.random.default_rng(self.sampling.seed)

    def take(self, token: int, log_prob: float) -> bool:
        """Add one token, chosen here or on the device, and tell whether the text continues."""
        ids, sampling = self.ids, self.sampling
        ids.append(token)
        self.log_probs.append(log_prob)
        self.total += log_prob
        ending = sampling.ending(ids)
        self.finished = bool(ending) or len(ids) >= sampling.max_tokens
        if self.guide and not self.guide.take(token):
            self.finished = True
        if ending:
            del ids[-ending:], self.log_probs[-ending:]
        return not self.finished

    def advance(self, scores: Sequence[Scores]) -> list[tuple[int, int]]:
        """Take one step and return the rows to continue as (parent row, token); empty when the request is
        finished.
        """
        token, log_prob = self._choose(scores[0])
        if self.sampling.keep_logits:
            self.logits.append(scores[0].logits.copy())
        return [(0, token)] if self.take(token, log_prob) else []

    def _choose(self, row: Scores) -> tuple[int, float]:
        logits = row.logits
        if self.sampling.timestamps:
            logits = logits.copy()
            self.sampling.timestamps.forbid(logits, self.ids)
        choice = processed(logits, [*self.prompt, *self.ids], self.ids, self.sampling)
        if self.guide:
            self.guide.forbid(choice)
        token = (
            int(choice.argmax())
            if self.sampling.greedy
            else _draw(log_softmax(choice), self.sampling, self.random)
        )
        # What the model gave it, whatever made it chosen: a low temperature must not look like certainty
        # (openai/whisper decoding.py).
        return token, float(logits[token]) - log_sum(logits)

    def results(self) -> list[Hypothesis]:
        """Return hypotheses, best first; while running, what there is so far."""
        return [self.best]

    @property
    def best(self) -> Hypothesis:
        """Return what there is so far."""
        return Hypothesis(
            tuple(self.ids), tuple(self.log_probs), tuple(self.logits), self.total, self.finished
        )


@dataclass
class Beams:
    """Beam search with the rules of transformers' `_beam_search` (v4.50 and later), so that ids can be
    compared.
    """

    prompt: Sequence[int]
    sampling: Sampling
    running: list[Hypothesis] = field(default_factory=lambda: [Hypothesis()])
    finished: list[tuple[float, Hypothesis]] = field(default_factory=list)
    done: bool = False

    def advance(self, scores: Sequence[Scores]) -> list[tuple[int, int]]:
        """See Single."""
        width = self.sampling.beam_width
        candidates = self._expand(
            self._log_probs(scores), scores, (2 + len(self.sampling.other_ends)) * width
        )
        ended = [(parent, beam) for parent, _, beam in candidates[:width] if beam.finished]
        self._finish([beam for _, beam in ended], len(self.running[0].ids) + 1)
        self._look(ended, scores)
        alive = [candidate for candidate in candidates if not candidate[2].finished][:width]
        self.running = [beam for _, _, beam in alive] or self.running
        self.done = not alive or self._settled(len(self.running[0].ids))
        return [] if self.done else [(parent, token) for parent, token, _ in alive]

    def _log_probs(self, scores: Sequence[Scores]) -> Floats:
        """Return log probabilities of each beam's next token [beams, vocabulary]. Penalties apply to them
        instead of logits, as in transformers' beam search. Whisper's rules come first, so that what they
        allow has all of the probability (openai/whisper decoding.py): a timestamp that must come is not
        unlikely.
        """
        logits = np.stack([row.logits for row in scores])
        if self.sampling.timestamps:
            for beam, row in zip(self.running, logits, strict=True):
                self.sampling.timestamps.forbid(row, beam.ids)
        out = log_softmax(logits)
        if self.sampling.changes:
            for beam, row in zip(self.running, out, strict=True):
                row[:] = processed(row, [*self.prompt, *beam.ids], beam.ids, self.sampling)
        return out

    def _expand(
        self, log_probs: Floats, scores: Sequence[Scores], count: int
    ) -> list[tuple[int, int, Hypothesis]]:
        totals = (log_probs + np.array([[beam.cum_log_prob] for beam in self.running], np.float32)).ravel()
        expanded = []
        for flat in highest(totals, count):
            parent, token = divmod(int(flat), log_probs.shape[1])
            logits = scores[parent].logits.copy() if self.sampling.keep_logits else None
            expanded.append(
                (
                    parent,
                    token,
                    self.running[parent].plus(token, float(log_probs[parent, token]), self.sampling, logits),
                )
            )
        return expanded

    def _finish(self, beams: list[Hypothesis], length: int) -> None:
        full = len(self.finished) == self.sampling.beam_width
        if full and self.sampling.early_stopping:
            return
        scored = [(beam.cum_log_prob / length**self.sampling.length_penalty, beam) for beam in beams]
        self.finished = sorted([*self.finished, *scored], key=lambda pair: -pair[0])[
            : self.sampling.beam_width
        ]

    def _look(self, ended: Sequence[tuple[int, Hypothesis]], scores: Sequence[Scores]) -> None:
        """Return the best beam's cross-attention, if it has just ended, by (parent row, beam)."""
        for parent, beam in ended:
            looked = scores[parent].looked
            if looked and beam is self.finished[0][1]:
                self.finished[0] = (self.finished[0][0], replace(beam, seen=looked()))

    def _settled(self, length: int) -> bool:
        """Tell whether no running beam can still beat the worst finished one."""
        if len(self.finished) < self.sampling.beam_width:
            return False
        best_possible = self.running[0].cum_log_prob / length**self.sampling.length_penalty
        return self.sampling.early_stopping or best_possible <= self.finished[-1][0]

    def results(self) -> list[Hypothesis]:
        """See Single."""
        found = [beam for _, beam in self.finished]
        return found if self.done and found else [*found, *self.running][: self.sampling.beam_width]


Strategy = Single | Beams


def strategy(prompt: Sequence[int], sampling: Sampling, guide: Guide | None = None) -> Strategy:
    """Return the strategy for a request's beam width; beams cannot follow a grammar."""
    return Beams(prompt, sampling) if sampling.beam_width > 1 else Single(prompt, sampling, guide)
