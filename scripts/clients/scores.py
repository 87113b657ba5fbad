"""Score a run over a data set: word and character error rates (jiwer), speed, latencies, and counts of
errors.

Text is normalized as for the figures of Whisper's authors (whisper-normalizer has their code; arXiv
2212.04356, appendix C).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import jiwer
import numpy as np
from whisper_normalizer.basic import BasicTextNormalizer
from whisper_normalizer.english import EnglishTextNormalizer

from .manifests import ManifestRow

Normalizer = Callable[[str], str]
NORMALIZERS: dict[str, Callable[[], Normalizer]] = {
    "english": EnglishTextNormalizer,
    "multilingual": BasicTextNormalizer,
    "none": lambda: str,
}
PERCENTILES = (50, 90, 99)


@dataclass(frozen=True)
class Outcome:
    """The result for one utterance; times in seconds. `first` is the time to the first words, `error` why
    there is no text.
    """

    utterance: ManifestRow
    duration: float
    text: str = ""
    latency: float = 0.0
    first: float = 0.0
    error: str = ""


@dataclass(frozen=True)
class Comparison:
    """One answer aligned with its reference, as (reference words, recognised words) pairs: equal, replaced,
    or one of them empty.
    """

    outcome: Outcome
    pairs: tuple[tuple[str, str], ...]

    @property
    def errors(self) -> int:
        """Return substitutions, deletions and insertions."""
        return sum(reference != hypothesis for reference, hypothesis in self.pairs)

    @property
    def wer(self) -> float:
        """Return errors per reference word, or per recognised word where nobody spoke."""
        return self.errors / max(sum(bool(reference) for reference, _ in self.pairs), 1)


@dataclass(frozen=True)
class SpeechScores:
    """The figures. Rates are fractions, None if no utterance was answered; percentiles are seconds by per
    cent.
    """

    comparisons: tuple[Comparison, ...]
    failures: tuple[Outcome, ...]
    wer: float | None
    cer: float | None
    words: int
    audio: float
    wall: float
    latency: dict[int, float]
    first: dict[int, float]
    substitutions: Counter[tuple[str, str]]
    deletions: Counter[str]
    insertions: Counter[str]

    @property
    def rtfx(self) -> float:
        """Return seconds of answered audio per second of wall time."""
        return self.audio / self.wall


def score(outcomes: Sequence[Outcome], wall: float, normalizer: str, *, cer: bool = False) -> SpeechScores:
    """Compute the figures; utterances without an answer are listed as failures and enter no rate. `wall` is
    the seconds of the whole run.
    """
    answered = [outcome for outcome in outcomes if not outcome.error]
    normal = NORMALIZERS[normalizer]()
    reference, hypothesis = (
        [normal(outcome.utterance.text) for outcome in answered],
        [normal(outcome.text) for outcome in answered],
    )
    aligned = jiwer.process_words(reference, hypothesis)
    comparisons = tuple(Comparison(outcome, pairs(aligned, i)) for i, outcome in enumerate(answered))
    errors = [pair for comparison in comparisons for pair in comparison.pairs if pair[0] != pair[1]]
    return SpeechScores(
        comparisons=comparisons,
        failures=tuple(outcome for outcome in outcomes if outcome.error),
        wer=aligned.wer if answered else None,
        cer=jiwer.process_characters(reference, hypothesis).cer if cer and answered else None,
        words=sum(map(len, aligned.references)),
        audio=sum(outcome.duration for outcome in answered),
        wall=wall,
        latency=percentiles([outcome.latency for outcome in answered]),
        first=percentiles([outcome.first for outcome in answered if outcome.first]),
        substitutions=Counter((a, b) for a, b in errors if a and b),
        deletions=Counter(a for a, b in errors if not b),
        insertions=Counter(b for a, b in errors if not a),
    )


def pairs(aligned: jiwer.WordOutput, i: int) -> tuple[tuple[str, str], ...]:
    """Return sentence i of jiwer's alignment, word by word."""
    found: list[tuple[str, str]] = []
    for chunk in aligned.alignments[i]:
        reference = aligned.references[i][chunk.ref_start_idx : chunk.ref_end_idx]
        hypothesis = aligned.hypotheses[i][chunk.hyp_start_idx : chunk.hyp_end_idx]
        found += zip(reference or [""] * len(hypothesis), hypothesis or [""] * len(reference), strict=True)
    return tuple(found)


def percentiles(values: Sequence[float], percents: Sequence[int] = PERCENTILES) -> dict[int, float]:
    """Return percentiles by per cent; empty without values."""
    return {percent: float(np.percentile(values, percent)) for percent in percents} if values else {}


def table(scores: SpeechScores) -> list[tuple[str, str]]:
    """Return the figures for people, as (name, value)."""
    deletions, insertions, substitutions = (
        counter.total() for counter in (scores.deletions, scores.insertions, scores.substitutions)
    )
    rows = [
        ("utterances", f"{len(scores.comparisons)} answered, {len(scores.failures)} failed"),
        (
            "WER",
            f"{shown_share(scores.wer)}: {substitutions} substitutions, {deletions} deletions, {insertions} "
            f"insertions in {scores.words} words",
        ),
        ("CER", shown_share(scores.cer)),
        ("RTFx", f"{scores.rtfx:.1f}: {scores.audio:.1f} s of audio in {scores.wall:.1f} s"),
        ("latency", shown_times(scores.latency)),
        ("first words", shown_times(scores.first)),
    ]
    unwanted = {"CER": scores.cer is None, "latency": not scores.latency, "first words": not scores.first}
    return [(name, value) for name, value in rows if not unwanted.get(name)]


def shown_share(rate: float | None) -> str:
    """Format as per cent."""
    return "none" if rate is None else f"{100 * rate:.2f} %"


def shown_times(times: dict[int, float]) -> str:
    """Format percentiles in seconds."""
    return ", ".join(f"p{percent} {value:.3f} s" for percent, value in times.items())
