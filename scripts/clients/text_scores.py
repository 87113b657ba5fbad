"""What a run over a file of prompts amounts to: ROUGE (Lin 2004; Google's rouge-score), exact answers, speed,
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
    """A prompt, the answer that would be right if the file has one, and the pictures that it is about."""

    name: str
    prompt: str
    reference: str | None = None
    pictures: tuple[Path, ...] = ()


@dataclass(frozen=True)
class Outcome:
    """What became of one question; times in seconds. `first`: until the first words, 0 if not streamed;
    `error`: why there is no answer.
    """

    question: Question
    text: str = ""
    tokens: int = 0
    latency: float = 0.0
    first: float = 0.0
    error: str = ""


@dataclass(frozen=True)
class Figures:
    """Shares and ROUGE's F are means over the answered questions that have a reference (`compared`);
    percentiles in seconds by percent.
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
        """Of all requests together."""
        return self.tokens / self.wall


class Words(Tokenizer):  # type: ignore[misc]
    """ROUGE over words of any script; rouge-score's own knows those of English alone."""

    def tokenize(self, text: str) -> list[str]:
        """Lower case, without punctuation."""
        return re.findall(r"\w+", text.lower())


def squeezed(text: str) -> str:
    """One blank between words: line ends and blanks make no answer wrong."""
    return " ".join(text.split())


def rouge(pairs: Sequence[tuple[str, str]]) -> dict[str, float]:
    """Mean F of each kind over (reference, answer) pairs; empty without pairs."""
    scorer = RougeScorer(ROUGE, tokenizer=Words())
    scored = [scorer.score(reference, answer) for reference, answer in pairs]
    return (
        {kind: statistics.mean(scores[kind].fmeasure for scores in scored) for kind in ROUGE}
        if scored
        else {}
    )


def figures(outcomes: Sequence[Outcome], wall: float) -> Figures:
    """Count; failures enter no mean. `wall`: seconds that all took together."""
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
    """The figures as people read them: (name, value)."""
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
