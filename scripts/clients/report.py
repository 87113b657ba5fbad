"""Write a run over a data set as report.json, errors.txt, report.png and report.html."""

from __future__ import annotations

import base64
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from html import escape
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from .scores import Comparison, Outcome, SpeechScores, table

STYLE = """
body { font: 15px/1.45 system-ui, sans-serif; margin: 2em auto; max-width: 70em; padding: 0 1em; color: #222 }
table { border-collapse: collapse; margin: 1em 0 }
td, th { border-bottom: 1px solid #ddd; padding: .25em .7em; text-align: left; vertical-align: top }
td.number { text-align: right; white-space: nowrap } img { max-width: 100% }
del { background: #fdd } ins { background: #dfd; text-decoration: none }
"""


def write(folder: Path, settings: Mapping[str, object], scores: SpeechScores) -> None:
    """Write all four files. `settings` describes the run for the reader."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "report.json").write_text(
        json.dumps(as_data(settings, scores), indent=1, ensure_ascii=False) + "\n", "utf-8"
    )
    (folder / "errors.txt").write_text("\n".join(error_lines(scores)) + "\n", "utf-8")
    draw(folder / "report.png", scores)
    (folder / "report.html").write_text(page(settings, scores, (folder / "report.png").read_bytes()), "utf-8")


def as_data(settings: Mapping[str, object], scores: SpeechScores) -> dict[str, object]:
    """Return the contents of report.json; rates are fractions, times are seconds."""
    figures = {
        name: getattr(scores, name)
        for name in ("wer", "cer", "rtfx", "words", "audio", "wall", "latency", "first")
    }
    return {
        "settings": dict(settings),
        "figures": {**figures, "answered": len(scores.comparisons), "failed": len(scores.failures)},
        "errors": {
            kind: [[label, count] for label, count in counted] for kind, counted in totals(scores).items()
        },
        "utterances": [
            *(_row(c.outcome, wer=c.wer) for c in scores.comparisons),
            *(_row(outcome, wer=None) for outcome in scores.failures),
        ],
    }


def _row(outcome: Outcome, wer: float | None) -> dict[str, Any]:
    row = asdict(outcome)
    utterance = row.pop("utterance")
    return {
        "name": utterance["name"],
        "reference": utterance["text"],
        "language": utterance["language"],
        "wer": wer,
        **row,
    }


def totals(scores: SpeechScores) -> dict[str, list[tuple[str, int]]]:
    """Return every error with its count, most frequent first."""
    swapped = Counter({" → ".join(pair): count for pair, count in scores.substitutions.items()})
    return {
        "substitutions": swapped.most_common(),
        "deletions": scores.deletions.most_common(),
        "insertions": scores.insertions.most_common(),
    }


def worst(scores: SpeechScores) -> list[Comparison]:
    """Return answers with errors, worst first."""
    return sorted((c for c in scores.comparisons if c.errors), key=lambda c: -c.wer)


def error_lines(scores: SpeechScores) -> Iterator[str]:
    """Return the lines of errors.txt."""
    for kind, counted in totals(scores).items():
        yield f"{kind.upper()}: {sum(count for _, count in counted)}"
        yield from (f"{count:6}  {label}" for label, count in counted)
        yield ""
    yield f"FAILED: {len(scores.failures)}"
    yield from (f"        {outcome.utterance.name}: {outcome.error}" for outcome in scores.failures)
    yield ""
    yield f"UTTERANCES WITH ERRORS: {len(worst(scores))} of {len(scores.comparisons)}"
    for comparison in worst(scores):
        yield f"\n{comparison.outcome.utterance.name}  WER {100 * comparison.wer:.1f} %"
        yield "reference   " + " ".join(reference for reference, _ in comparison.pairs if reference)
        yield "hypothesis  " + " ".join(hypothesis for _, hypothesis in comparison.pairs if hypothesis)


def draw(path: Path, scores: SpeechScores) -> None:
    """Draw a histogram of latencies with percentiles, and each utterance's word error rate, worst first."""
    figure = Figure(figsize=(11, 4), layout="constrained")
    times, rates = figure.subplots(1, 2)
    times.hist(
        [c.outcome.latency for c in scores.comparisons],
        bins=min(40, max(5, len(scores.comparisons) // 5)),
        color="#4477aa",
    )
    for (percent, value), style in zip(scores.latency.items(), ("-", "--", ":"), strict=False):
        times.axvline(value, color="#222222", linestyle=style, label=f"p{percent} {value:.2f} s")
    times.set(title="Latency", xlabel="seconds", ylabel="utterances")
    if scores.latency:
        times.legend()
    wers = sorted((100 * c.wer for c in scores.comparisons), reverse=True)
    rates.bar(range(1, len(wers) + 1), wers, width=1.0, color="#cc6677")
    rates.set(
        title=f"WER of each utterance: {sum(map(bool, wers))} of {len(wers)} with errors",
        xlabel="utterances, the worst first",
        ylabel="%",
    )
    rates.set_ylim(0, max([1.0, *wers]) * 1.05)
    figure.savefig(path, dpi=110)


def page(settings: Mapping[str, object], scores: SpeechScores, picture: bytes) -> str:
    """Return report.html: one file without links, so that it can be sent."""
    image = base64.b64encode(picture).decode()
    parts = [
        '<!doctype html>\n<html lang="en"><meta charset="utf-8">'
        f"<title>Conch: {escape(str(settings['data set']))}</title><style>{STYLE}</style>",
        f"<h1>{escape(str(settings['data set']))}</h1>",
        rows(table(scores)),
        f'<img alt="Latency, and WER of each utterance" src="data:image/png;base64,{image}">',
        section("Failed", rows((o.utterance.name, o.error) for o in scores.failures), len(scores.failures)),
        *(
            section(kind.capitalize(), rows(counted), sum(count for _, count in counted))
            for kind, counted in totals(scores).items()
        ),
        section("Utterances with errors", compared(worst(scores)), len(worst(scores))),
        "<h2>Settings</h2>" + rows(settings.items()),
    ]
    return "\n".join(parts) + "\n</html>\n"


def section(title: str, body: str, count: int) -> str:
    """Return a heading with a count, and the body if the count is not 0."""
    return f"<h2>{title}: {count}</h2>" + (body if count else "")


def rows(pairs: Iterable[tuple[str, object]]) -> str:
    """Return a table of two columns."""
    return (
        "<table>"
        + "\n".join(f"<tr><th>{escape(name)}<td>{escape(str(value))}" for name, value in pairs)
        + "</table>"
    )


def compared(comparisons: Sequence[Comparison]) -> str:
    """Return a table of texts in which missed words are struck out and replacements follow."""
    lines = [
        f'<tr><td>{escape(c.outcome.utterance.name)}<td class="number">{100 * c.wer:.1f} %<td>{marked(c)}'
        for c in comparisons
    ]
    return "<table>" + "\n".join(lines) + "</table>"


def marked(comparison: Comparison) -> str:
    """Return the words of both texts as HTML."""

    def mark(reference: str, hypothesis: str) -> str:
        if reference == hypothesis:
            return escape(reference)
        return " ".join(
            f"<{tag}>{escape(word)}</{tag}>"
            for tag, word in (("del", reference), ("ins", hypothesis))
            if word
        )

    return " ".join(mark(*pair) for pair in comparison.pairs)
