"""Report measurements and goals as Markdown, JSON and a plot."""

from __future__ import annotations

import dataclasses
import json
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from speech import media

from ..stage import DOCS, machine
from .cells import DEFAULTS, LENGTHS, TOKENS, Cell, sound
from .conch import OVERHEAD_REQUESTS, wav


def ratio(cells: Sequence[Cell], ours: str, seconds: int, concurrency: int, peers: str) -> float:
    """Divide Conch's clips per second by the best peer's at the same number of clips in flight."""
    mine = next(
        cell for cell in cells if (cell.who, cell.seconds, cell.concurrency) == (ours, seconds, concurrency)
    )
    rivals = [
        c
        for c in cells
        if c.who.startswith(peers)
        and c.seconds == seconds
        and (c.concurrency == concurrency or (concurrency == 8 and "batch" in c.who))
    ]
    rivals = [c for c in rivals if concurrency == 8 or "batch" not in c.who]
    return mine.per_second / max(c.per_second for c in rivals)


def decoding_seconds(seconds: int) -> float:
    """Return the median time to decode a clip's WAV file, as the gateway does."""
    times = []
    with tempfile.NamedTemporaryFile(suffix=".wav") as file:
        file.write(wav(sound(seconds, 0)))
        file.flush()
        for _ in range(15):
            begin = time.perf_counter()
            media.decode(Path(file.name), max_seconds=60, time_limit=60)
            times.append(time.perf_counter() - begin)
    return float(np.median(times))


def goals(cells: Sequence[Cell], added: float) -> list[tuple[str, float, float]]:
    """Return goal, target and result."""
    return [
        (
            "30 s, concurrency 1: times faster-whisper (wanted at least)",
            2.5,
            ratio(cells, "Conch, gateway", 30, 1, "faster-whisper"),
        ),
        (
            "30 s, concurrency 8: times faster-whisper's best (at least)",
            3.0,
            ratio(cells, "Conch, gateway", 30, 8, "faster-whisper"),
        ),
        (
            "3 s, concurrency 1, unpadded against padded faster-whisper (at least)",
            8.0,
            ratio(cells, "Conch, unpadded, gateway", 3, 1, "faster-whisper"),
        ),
        (
            "3 s, concurrency 8, unpadded against padded faster-whisper (at least)",
            8.0,
            ratio(cells, "Conch, unpadded, gateway", 3, 8, "faster-whisper"),
        ),
        (
            f"gateway and nginx over direct Triton at p50 of {OVERHEAD_REQUESTS} clips of 1.6 s, without "
            "decoding, ms (at most)",
            2.0,
            1000 * (added - decoding_seconds(2)),
        ),
    ]


def table(cells: Sequence[Cell]) -> list[str]:
    """Return Markdown rows."""
    lines = [
        "",
        "| | clip s | in flight | clips | RTFx | clips/s | p50 | p95 | p99 | MB |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for c in sorted(cells, key=lambda c: (c.seconds, c.concurrency, -c.rtfx)):
        numbers = (
            f"{c.requests} | {c.rtfx} | {c.per_second} | {c.p50:.3f} | {c.p95:.3f} | {c.p99:.3f} | "
            f"{c.memory:g}"
        )
        lines.append(f"| {c.who} | {c.seconds} | {c.concurrency} | {numbers} |")
    return lines


def report(cells: Sequence[Cell], added: float) -> None:
    """Write Markdown, JSON and a plot."""
    equal, defaults = [c for c in cells if DEFAULTS not in c.who], [c for c in cells if DEFAULTS in c.who]
    DOCS.mkdir(parents=True, exist_ok=True)
    (DOCS / "whisper-base-cpu.json").write_text(
        json.dumps([dataclasses.asdict(cell) for cell in cells], indent=1) + "\n"
    )
    lines = [
        "# Whisper-base on a CPU",
        "",
        f"`make bench` on {machine()}, {time.strftime('%Y-%m-%d')}. Random weights of Whisper-base's shape, "
        "the same for all; greedy,",
        f"{TOKENS} tokens for every clip, no fallback, all cores for each. Conch computes in the precision "
        "that the CPU multiplies natively (bf16 here),",
        "faster-whisper in int8, transformers in f32. All figures are of one run; latencies in seconds, "
        "memory (all processes) in MB.",
        "",
        "| goal | wanted | reached |",
        "|---|---|---|",
    ]
    lines += [f"| {name} | {wanted:g} | **{reached:.2f}** |" for name, wanted, reached in goals(equal, added)]
    decoding = ", ".join(f"{seconds} s: {1000 * decoding_seconds(seconds):.1f} ms" for seconds in LENGTHS)
    lines += ["", f"Decoding a WAV clip in the gateway (part of its latency below): {decoding}."]
    lines += ["", "## Equal work", *table(equal)]
    lines += [
        "",
        "A batch counts as one call: its latency is that of all its clips. Runs are short: differences of a "
        "few per cent, and overheads of some ms next to",
        "latencies of hundreds, are noise.",
        "",
        "![clips per second](whisper-base-cpu.png)",
        "",
        "## Defaults",
        "",
        "Nothing set but the language. Random weights never end a text by themselves, so each runs to its "
        "own limits: Conch greedily to 448 positions,",
        "transformers greedily to 20 tokens (its default where a checkpoint says nothing), faster-whisper "
        "with five beams to 448 and, since such text",
        "looks improbable, again at each temperature of its fallback ladder. So this is not equal work: it "
        "shows what defaults may cost at worst.",
        *table(defaults),
        "",
    ]
    (DOCS / "whisper-base-cpu.md").write_text("\n".join(lines))
    plot(equal)


def plot(cells: Sequence[Cell]) -> None:
    """Plot clips per second, one panel for each clip length."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(1, len(LENGTHS), figsize=(15, 4.5), layout="constrained")
    for panel, seconds in zip(panels, LENGTHS, strict=True):
        rows = sorted((c for c in cells if c.seconds == seconds), key=lambda c: c.per_second)
        panel.barh(
            [f"{c.who} × {c.concurrency}" for c in rows],
            [c.per_second for c in rows],
            color=["#2a7" if c.who.startswith("Conch") else "#999" for c in rows],
        )
        panel.set_title(f"{seconds} s clips")
        panel.set_xlabel("clips per second")
        panel.tick_params(axis="y", labelsize=7)
    figure.savefig(DOCS / "whisper-base-cpu.png", dpi=110)
