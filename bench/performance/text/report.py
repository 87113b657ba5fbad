"""Report measurements and goals as Markdown, JSON and a plot."""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Iterator, Sequence
from math import isnan, nan

from ..stage import DOCS, spread
from .cells import CT2, HF, LONG, MODELS, PROMPTS, REQUESTS, SHORT, BenchModel, Runs, TextCell
from .conch import ALONE, CONCH, FIRST_ALONE, FIRST_WITH_OTHERS, INT8, OTHERS, WITH_A_LONG_ONE

INTRODUCTION = f"""\
Random weights of the shapes of flan-t5-small, bart-base and gpt2-medium, the same for all; greedy; all cores
for each. Conch computes in the precision that the CPU multiplies natively (bf16 here), with weights as they
are or, "int8", with `compress = "int8"` in the catalog.

Random weights know no words, so every system reads and generates ids. Conch is measured at its tritonserver,
`tensorrt_llm` over HTTP and `tensorrt_llm_stream` ("streamed") over gRPC, without gateway and tokenizer; the
client shares its cores. The peers are called in their own process. Prompts have {min(PROMPTS)} to
{max(PROMPTS)} ids, answers {min(LONG)} to {max(LONG)} (gpt2-medium: {min(SHORT)} to {max(SHORT)}), mixed; EOS
is suppressed, so that every system generates exactly the requested tokens. With CTranslate2 a row leaves its
batch when it has made its tokens; transformers works until the longest row has. Peers wait until a batch is
full; every request in it is charged the batch's latency.
"""
END = """
With several runs, all systems ran in turns: each figure is their median, with the lowest and the highest
speed in brackets. Runs are short: differences of a few per cent are noise.

![tokens per second](text-cpu.png)
"""


def best(cells: Sequence[TextCell], system: str, model: str, concurrency: int) -> float:
    """Return tokens per second of a system's fastest mode with so many requests available, not necessarily
    all at once. NaN if not measured.
    """
    found = (
        c for c in cells if c.system.startswith(system) and c.model == model and c.concurrency <= concurrency
    )
    return max((c.tokens_per_second for c in found), default=nan)


def rate(cells: Sequence[TextCell], system: str, model: str, concurrency: int) -> float:
    """Return Conch's unary tokens per second, float or int8; NaN if not measured."""
    asked = (system, model, concurrency)
    return next((c.tokens_per_second for c in cells if (c.system, c.model, c.concurrency) == asked), nan)


def ratio(cells: Sequence[TextCell], system: str, peer_name: str, model: str, concurrency: int) -> float:
    """Divide it by a peer's best."""
    return rate(cells, system, model, concurrency) / best(cells, peer_name, model, concurrency)


def goals(cells: Sequence[TextCell]) -> Iterator[tuple[str, float, float]]:
    """Return goal, target and result of what was measured."""
    for model in dict.fromkeys(cell.model for cell in cells):
        own = {cell.system: cell for cell in cells if cell.model == model}
        for many, (system, weights) in itertools.product((8, 32), ((CONCH, ""), (INT8, ", int8"))):
            name = f"{model}{weights}, {many} in flight: times CTranslate2's best (wanted at least)"
            if system in own and any(peer.startswith(CT2) for peer in own):
                yield name, 1.5, ratio(cells, system, CT2, model, many)
        name = f"{model}, p99 of five tokens next to a request for 500: times alone (at most)"
        yield name, 2.0, own[WITH_A_LONG_ONE].p99 / own[ALONE].p99
        if FIRST_WITH_OTHERS in own:
            name = f"{model}, p99 of a stream's first token under {OTHERS} others: times alone (at most)"
            yield name, 1.5, own[FIRST_WITH_OTHERS].first_p99 / own[FIRST_ALONE].first_p99
        if any(system.startswith(HF) for system in own):
            name = f"{model}, worst of all concurrencies: times transformers' best (at least)"
            yield name, 1.0, min(ratio(cells, CONCH, HF, model, n) for n in REQUESTS)


def shown(value: float, form: str) -> str:
    """Format a cell of a table; a dash for what was not measured."""
    return "–" if isnan(value) else form.format(value)


def ratios(cells: Sequence[TextCell]) -> list[str]:
    """Return tokens per second, Conch's and the peers' best, in Markdown."""
    lines = [
        "",
        f"| | in flight | Conch | int8 | {CT2}'s best | times | int8 | {HF}' best | times | int8 |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for model, many in itertools.product(dict.fromkeys(cell.model for cell in cells), REQUESTS):
        numbers = [shown(rate(cells, system, model, many), "{:g}") for system in (CONCH, INT8)]
        for peer in (CT2, HF):
            numbers.append(shown(best(cells, peer, model, many), "{:g}"))
            numbers += [
                shown(ratio(cells, system, peer, model, many), "**{:.2f}**") for system in (CONCH, INT8)
            ]
        lines.append(f"| {model} | {many} | {' | '.join(numbers)} |")
    return lines


def table(cells: Sequence[TextCell]) -> list[str]:
    """Return Markdown rows."""
    lines = [
        "",
        "| | in flight | requests | tokens/s | first token p50 | p99 | whole p50 | p99 |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for c in sorted(cells, key=lambda c: (c.concurrency, -c.tokens_per_second)):
        first = f"{c.first_p50:.3f} | {c.first_p99:.3f}" if c.first_p50 else "– | –"
        speed = f"{c.tokens_per_second:g}{spread(dataclasses.asdict(c))}"
        lines.append(
            f"| {c.system} | {c.concurrency} | {c.requests} | {speed} | {first} | {c.p50:.3f} | {c.p99:.3f} |"
        )
    return lines


def kept(models: Sequence[BenchModel]) -> Runs:
    """Return earlier measurements of other models."""
    path = DOCS / "text-cpu.json"
    data = json.loads(path.read_text("utf-8")) if path.exists() else {}
    return {
        name: (run["run"], [TextCell(**row) for row in run["cells"]])
        for name, run in data.items()
        if name in set(MODELS) - {model.name for model in models}
    }


def report(runs: Runs) -> None:
    """Write Markdown, JSON and a plot."""
    DOCS.mkdir(parents=True, exist_ok=True)
    runs = {name: runs[name] for name in MODELS if name in runs}
    data = {
        name: {"run": run, "cells": [dataclasses.asdict(cell) for cell in cells]}
        for name, (run, cells) in runs.items()
    }
    (DOCS / "text-cpu.json").write_text(json.dumps(data, indent=1) + "\n", "utf-8")
    cells = [cell for _, own in runs.values() for cell in own]
    lines = [
        "# T5, BART and GPT-2 on a CPU",
        "",
        "`python -m bench.performance.text` (part of `make bench`), all that is compared in one run: "
        + "; ".join(f"{name} {run}" for name, (run, _) in runs.items())
        + ".",
        INTRODUCTION,
        "| goal | wanted | reached |",
        "|---|---|---|",
        *(f"| {name} | {wanted:g} | **{reached:.2f}** |" for name, wanted, reached in goals(cells)),
        "",
        "## Tokens per second",
        "",
        "A peer's best: the fastest of its rows below with at most so many requests in flight, whatever "
        "precision and way.",
        *ratios(cells),
    ]
    for model in dict.fromkeys(cell.model for cell in cells):
        lines += ["", f"## {model}", "", "Seconds.", *table([cell for cell in cells if cell.model == model])]
    (DOCS / "text-cpu.md").write_text("\n".join([*lines, END]), "utf-8")
    plot(cells)


def plot(cells: Sequence[TextCell]) -> None:
    """Plot tokens per second, one panel for each shape."""
    from matplotlib.figure import Figure

    names = list(dict.fromkeys(cell.model for cell in cells))
    figure = Figure(figsize=(16, 6), layout="constrained")
    for panel, name in zip(figure.subplots(1, len(names), squeeze=False)[0], names, strict=True):
        rows = sorted((c for c in cells if c.model == name), key=lambda c: c.tokens_per_second)
        labels = [f"{c.system} × {c.concurrency}" for c in rows]
        colours = ["#2a7" if c.system.startswith("Conch") else "#999" for c in rows]
        panel.barh(labels, [c.tokens_per_second for c in rows], color=colours)
        panel.set(title=name, xlabel="tokens per second")
        panel.tick_params(axis="y", labelsize=7)
    figure.savefig(DOCS / "text-cpu.png", dpi=110)
