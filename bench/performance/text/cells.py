"""Shapes, requests of mixed lengths, and their measurements."""

from __future__ import annotations

import dataclasses
import itertools
import json
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..stage import WORK, middle

PROMPTS = (16, 96, 32, 160, 64, 24, 128, 48)
REQUESTS = {1: 8, 8: 16, 32: 32}  # by concurrency; whole rounds of PROMPTS
CT2, HF = "CTranslate2", "transformers"


@dataclass(frozen=True)
class BenchModel:
    """A shape. `answers`: the numbers of tokens to generate, in turn."""

    name: str
    family: str
    architecture: str
    answers: tuple[int, ...]
    vocabulary: int

    @property
    def folder(self) -> Path:
        """Return the folder of the peers' checkpoints."""
        return WORK / "text" / self.name

    @property
    def alone(self) -> bool:
        """Tell whether it is decoder-only."""
        return self.family == "gpt2"


SHORT = (32, 6, 24, 12, 48, 4, 16, 8)
LONG = tuple(2 * n for n in SHORT)
MODELS = {
    model.name: model
    for model in (
        BenchModel("flan-t5-small", "t5", "T5ForConditionalGeneration", LONG, 32128),
        BenchModel("bart-base", "bart", "BartForConditionalGeneration", LONG, 50265),
        BenchModel("gpt2-medium", "gpt2", "GPT2LMHeadModel", SHORT, 50257),
    )
}


@dataclass(frozen=True)
class BenchRequest:
    """Ids to read, and how many to generate."""

    ids: tuple[int, ...]
    wanted: int


@dataclass(frozen=True)
class TextCell:
    """One measurement, or the median of several. Times in seconds: to the first token (0 where unknown), and
    to the last. `lowest`, `highest`: tokens per second of several runs.
    """

    system: str
    model: str
    concurrency: int
    requests: int
    tokens: int
    tokens_per_second: float
    first_p50: float
    first_p99: float
    p50: float
    p99: float
    lowest: float = 0.0
    highest: float = 0.0


Runs = dict[str, tuple[str, list[TextCell]]]  # by model: when and where, and what was measured
Timed = tuple[float, float]  # seconds until the first and until the last token of a request
Call = Callable[[Sequence[BenchRequest]], list[Timed]]


def requests(model: BenchModel, count: int) -> list[BenchRequest]:
    """Return mixed lengths, the same for all systems, without special ids (the first and the last)."""
    random = np.random.default_rng(count)
    pairs = itertools.islice(itertools.cycle(zip(PROMPTS, model.answers, strict=True)), count)
    return [one(model, pair, random) for pair in pairs]


def measure(system: str, model: BenchModel, concurrency: int, call: Call, batch: int = 1) -> TextCell:
    """Send all requests from threads. `batch` is the number of requests per call."""
    asked = requests(model, REQUESTS[concurrency])
    groups = [asked[i : i + batch] for i in range(0, len(asked), batch)]
    call([BenchRequest(request.ids, 4) for request in groups[0]])
    begin = time.perf_counter()
    with ThreadPoolExecutor(max(1, concurrency // batch)) as pool:
        timed = [one for group in pool.map(call, groups) for one in group]
    seconds = time.perf_counter() - begin
    return summed(system, model, concurrency, sum(request.wanted for request in asked), seconds, timed)


def summed(
    system: str, model: BenchModel, concurrency: int, tokens: int, seconds: float, timed: Sequence[Timed]
) -> TextCell:
    """Make the measurement of requests that took so many seconds together, and print it."""
    (first, slow_first), (p50, p99) = (
        [round(float(np.percentile(values, percent)), 4) for percent in (50, 99)]
        for values in zip(*timed, strict=True)
    )
    rate = round(tokens / seconds, 1)
    cell = TextCell(system, model.name, concurrency, len(timed), tokens, rate, first, slow_first, p50, p99)
    print(json.dumps(dataclasses.asdict(cell)), flush=True)
    return cell


def middles(runs: Sequence[Sequence[TextCell]]) -> list[TextCell]:
    """Return the median of each measurement over several runs."""
    found: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for cell in (cell for run in runs for cell in run):
        found.setdefault((cell.system, cell.concurrency), []).append(dataclasses.asdict(cell))
    return [TextCell(**middle(rows, "tokens_per_second")) for rows in found.values()]


def one(model: BenchModel, lengths: tuple[int, int], random: np.random.Generator) -> BenchRequest:
    """Make a request: so many random ids to read, and to generate."""
    return BenchRequest(tuple(random.integers(10, model.vocabulary - 200, lengths[0]).tolist()), lengths[1])
