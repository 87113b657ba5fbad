"""Write a run over a file of prompts as one HTML page: the figures, and every answer with its pictures, wrong
ones first.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path

from .report import STYLE
from .text import data_url
from .text_scores import Figures, TextOutcome, squeezed, table


def right(outcome: TextOutcome) -> bool | None:
    """Tell whether it is the one right answer; None where the file has none."""
    if outcome.question.reference is None:
        return None
    return not outcome.error and squeezed(outcome.question.reference) == squeezed(outcome.text)


def page(model: str, outcomes: Sequence[TextOutcome], found: Figures) -> str:
    """Return the page with its pictures embedded."""
    figures = "".join(f"<tr><th>{name}</th><td>{escape(value)}</td></tr>" for name, value in table(found))
    ordered = sorted(outcomes, key=lambda one: right(one) is not False)
    head = "<tr><th></th><th>question</th><th>answer</th><th>right</th><th>seconds</th></tr>"
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{escape(model)}</title>'
        f"<style>{STYLE} td img {{ max-height: 8em }} tr.wrong td {{ background: #fee }}</style>"
        f"<h1>{escape(model)}</h1><table>{figures}</table>"
        f"<table>{head}{''.join(map(row, ordered))}</table></html>\n"
    )


def row(outcome: TextOutcome) -> str:
    """Return one answer's row."""
    question = outcome.question
    seen = "".join(f'<img alt="" src="{_source(path)}">' for path in question.pictures)
    kind = ' class="wrong"' if right(outcome) is False else ""
    cells = (question.prompt, outcome.error or outcome.text, question.reference or "")
    shown = "".join(f"<td>{escape(cell)}</td>" for cell in cells)
    return f'<tr{kind}><td>{seen}</td>{shown}<td class="number">{outcome.latency:.3f}</td></tr>'


def _source(path: Path) -> str:
    """Return a picture's source; a picture that could not be read was not sent either."""
    try:
        return data_url(path)
    except (OSError, ValueError):
        return ""
