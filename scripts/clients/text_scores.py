"""Score a run over a file of prompts: ROUGE (Lin 2004; Google's rouge-score), exact answers, speed,
latencies, failures.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rouge_score.rouge_scorer import RougeScorer
from rouge_score.tokenizers import Tokenizer

from .scores import percentiles, shown_share, shown_times

ROUGE = ("rouge1", "rouge2", "rougeL")
PERCENTILES = (50, 95, 99)


@dataclass(frozen=True)
class Question:
    """A prompt, its reference answer if the file has one, and its pictures."""

    name: str
    prompt: str
    reference: str | None = None
    pictures: tuple[Path, ...] = ()


@dataclass(frozen=True)
class TextOutcome:
    """The result for one question; times in seconds. `first` is the time to the first words, 0 if not
    streamed; `error` is why there is no answer.
    """

    question: Question
    text: str = ""
    tokens: int = 0
    latency: float = 0.0
    first: float = 0.0
    error: str = ""


@dataclass(frozen=True)
class Figures:
    """Fractions and ROUGE's F are means over the answered questions that have a reference (`compared`);
    percentiles are seconds by per cent.
    """

    answered: int
    failed: int
    compared: int
    exact: float | None
    rouge: dict[str, float]
    tokens: int
    wall: float
    latency: dict[int, float]
    first: dict[int, float]

    @property
    def tokens_per_second(self) -> float:
        """Return tokens per second over all requests."""
        return self.tokens / self.wall


class WordTokenizer(Tokenizer):  # type: ignore[misc]
    """Tokenizer for ROUGE over words of any script; rouge-score's own only supports English."""

    def tokenize(self, text: str) -> list[str]:
        """Split into lower-case words without punctuation."""
        return re.findall(r"\w+", text.lower())


def squeezed(text: str) -> str:
    """Collapse whitespace, so that line breaks and spaces make no answer wrong."""
    return " ".join(text.split())


def rouge(pairs: Sequence[tuple[str, str]]) -> dict[str, float]:
    """Return the mean F of each kind over (reference, answer) pairs; empty without pairs."""
    scorer = RougeScorer(ROUGE, tokenizer=WordTokenizer())
    scored = [scorer.score(reference, answer) for reference, answer in pairs]
    return (
        {kind: statistics.mean(scores[kind].fmeasure for scores in scored) for kind in ROUGE}
        if scored
        else {}
    )


def figures(outcomes: Sequence[TextOutcome], wall: float) -> Figures:
    """Compute the figures; failures enter no mean. `wall` is the seconds of the whole run."""
    answered = [outcome for outcome in outcomes if not outcome.error]
    pairs = [(o.question.reference, o.text) for o in answered if o.question.reference is not None]
    return Figures(
        answered=len(answered),
        failed=len(outcomes) - len(answered),
        compared=len(pairs),
        exact=statistics.mean(squeezed(wanted) == squeezed(text) for wanted, text in pairs)
        if pairs
        else None,
        rouge=rouge(pairs),
        tokens=sum(outcome.tokens for outcome in answered),
        wall=wall,
        latency=percentiles([outcome.latency for outcome in answered], PERCENTILES),
        first=percentiles([outcome.first for outcome in answered if outcome.first], PERCENTILES),
    )


def table(found: Figures) -> list[tuple[str, str]]:
    """Return the figures for people, as (name, value)."""
    rouges = ", ".join(
        f"{kind.removeprefix('rouge')} {100 * share:.2f} %" for kind, share in found.rouge.items()
    )
    rows = {
        "questions": f"{found.answered} answered, {found.failed} failed",
        "exact": f"{shown_share(found.exact)} of {found.compared} with a reference" if found.compared else "",
        "ROUGE F": rouges,
        "tokens/s": f"{found.tokens_per_second:.1f}: {found.tokens} tokens in {found.wall:.1f} s"
        if found.tokens
        else "",
        "latency": shown_times(found.latency),
        "first words": shown_times(found.first),
    }
    return [(name, value) for name, value in rows.items() if value]
