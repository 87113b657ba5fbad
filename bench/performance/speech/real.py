"""Real weights of Whisper base on speech through the gateway, compared with faster-whisper and whisper.cpp on
the same weights: `python -m bench.performance.speech.real`.

Clips of at most 30 s (or `--seconds`) are sentences of `bench/quality/` with short pauses. Greedy, in
English, without
times; every text ends by itself, and each cell says how many words were wrong. A cell is kept in
.conch/bench/real as soon as it is measured: a run that was cut off goes on where it stopped, `--again` starts
from the beginning.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import cycle
from pathlib import Path
from queue import Queue
from typing import Any

import httpx
import numpy as np

from bench.quality.peer import peer_folder
from bench.quality.recordings import Recording, Utterance, join, utterances
from bench.quality.scores import score
from build.catalog import ROOT
from ops.local import HOST

from ..ggml import convert
from ..stage import WORK, cores, group_memory, machine, middle, own_memory, running, spread
from .cells import CONCURRENCY, RATE, timed_cell
from .conch import wav

KEPT = WORK / "real"
MODEL, SENTENCES, CLIPS, SECONDS = "base", 32, 32, 30
VOCABULARY = "build/assets/whisper/multilingual.tiktoken"
WANTED = {1: 2.5, 8: 3.0}  # × the peer's best
GREEDY: dict[str, Any] = {"language": "en", "beam_size": 1, "temperature": 0.0, "without_timestamps": True}
# faster-whisper's settings: threads of a worker, workers, clips in a batch (0: one at a time).
SETTINGS = {1: [(cores(), 1, 0), (1, 1, 0)], 8: [(cores(), 1, 0), (1, cores(), 0), (cores(), 1, 8)]}
# whisper.cpp's: threads of a model, models.
MODELS = {1: [(cores(), 1)], 8: [(cores(), 1), (1, cores())]}
Call = Callable[[int], str]


def clips(seconds: int) -> list[Recording]:
    """Join sentences into clips, as many as fit; sentences that are too long are skipped."""
    spoken = utterances(ROOT / "weights", SENTENCES if seconds == SECONDS else None)
    sentences = cycle(one for one in spoken if len(one.wave) / RATE + 0.6 <= seconds)
    made = list[Recording]()
    parts, at = list[Utterance](), 0.0
    while len(made) < CLIPS:
        one = next(sentences)
        length = len(one.wave) / RATE + 0.6
        if at + length > seconds:
            made.append(join(parts, (0.2, 0.6), len(made)))
            parts, at = [], 0.0
        parts, at = [*parts, one], at + length
    return made


def wrong(transcripts: dict[int, str], made: list[Recording]) -> float:
    """Compute the word error rate in percent over all clips."""
    return score(" ".join(made[i].text for i in transcripts), " ".join(transcripts.values())).rate


@contextmanager
def through_gateway(made: list[Recording]) -> Iterator[tuple[Call, Callable[[], float]]]:
    """Start one instance on all cores; `Call` sends a WAV file."""
    files = [wav(one.wave) for one in made]
    with running(MODEL, engines=ROOT / "engines", weights=ROOT / "weights") as (layout, process):
        client = httpx.Client(trust_env=False, base_url=f"http://{HOST}:{layout.port}", timeout=600)

        def call(number: int) -> str:
            data = {"model": MODEL, "language": "en", "temperature": "0", "beam_width": "1"}
            answer = client.post(
                "/v1/audio/transcriptions", files={"file": ("a.wav", files[number])}, data=data
            )
            return str(answer.raise_for_status().json()["text"])

        yield call, partial(group_memory, process.pid)


@contextmanager
def faster_whisper(
    made: list[Recording], threads: int, workers: int, batch: int
) -> Iterator[tuple[Call, Callable[[], float]]]:
    """Load CTranslate2 int8; with a batch, one call transcribes that many clips."""
    from faster_whisper import BatchedInferencePipeline, WhisperModel

    folder = str(peer_folder(ROOT / "weights", MODEL))
    model = WhisperModel(folder, compute_type="int8", cpu_threads=threads, num_workers=workers)
    pipeline = BatchedInferencePipeline(model)

    def alone(number: int) -> str:
        options = {**GREEDY, "condition_on_previous_text": False}
        return " ".join(part.text for part in model.transcribe(made[number].wave, **options)[0])

    def together(number: int) -> str:
        waves = [made[(number + i) % len(made)].wave for i in range(batch)]
        ends = np.cumsum([len(wave) for wave in waves]) / RATE
        stamps = [{"start": b, "end": e} for b, e in zip([0.0, *ends[:-1]], ends, strict=True)]
        found = pipeline.transcribe(
            np.concatenate(waves), **GREEDY, vad_filter=False, clip_timestamps=stamps, batch_size=batch
        )[0]
        return " ".join(part.text for part in found)

    yield (together if batch else alone), own_memory


@contextmanager
def whisper_cpp(
    made: list[Recording], threads: int, models: int, seconds: int
) -> Iterator[tuple[Call, Callable[[], float]]]:
    """Load it in float16; each model transcribes one clip at a time. Clips of less than 28 s are encoded with
    2 s of silence (`audio_ctx`), as Conch does.
    """
    from pywhispercpp.model import Model

    file = WORK / f"{MODEL}.ggml"
    if not file.exists():
        convert(ROOT / f"weights/{MODEL}.huggingface", ROOT / VOCABULARY, file)
    free = Queue[Any]()
    for _ in range(models):
        free.put(Model(str(file), n_threads=threads, print_progress=False, print_realtime=False))
    options = {"language": "en", "temperature": 0.0, "temperature_inc": 0.0, "no_context": True}
    if seconds < 28:
        options["audio_ctx"] = 50 * (seconds + 2)

    def call(number: int) -> str:
        model = free.get()
        found = model.transcribe(made[number].wave, greedy={"best_of": 1}, **options)
        free.put(model)
        return " ".join(part.text for part in found)

    yield call, own_memory


def cell(
    name: str,
    concurrency: int,
    made: list[Recording],
    call: Call,
    memory: Callable[[], float],
    kept: Path,
    seconds: int,
    batch: int = 0,
) -> None:
    """Measure and store one. A batch has no word error rate, since its words are those of several clips."""
    transcripts: dict[int, str] = {}

    def noted(number: int) -> None:
        transcripts[number] = call(number)

    numbers = range(0, CLIPS, batch) if batch else range(CLIPS)
    found = timed_cell(name, seconds, 1 if batch else concurrency, numbers, noted, memory, batch or 1)
    rate = None if batch else round(wrong(transcripts, made), 2)
    row = {**dataclasses.asdict(found), "concurrency": concurrency, "wer": rate, "machine": machine()}
    kept.parent.mkdir(parents=True, exist_ok=True)
    kept.write_text(json.dumps(row) + "\n", "utf-8")


def path(name: str, concurrency: int, run: int, seconds: int) -> Path:
    """Return where a cell is stored."""
    return KEPT / str(seconds) / str(run) / f"{name.replace(' ', '-').replace(',', '')}-{concurrency}.json"


def rows(seconds: int) -> list[dict[str, Any]]:
    """Return what has been measured: the middle run of each cell."""
    found: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for file in sorted((KEPT / str(seconds)).glob("*/*.json")):
        row = json.loads(file.read_text("utf-8"))
        found.setdefault((row["who"], row["concurrency"]), []).append(row)
    return [middle(runs, "per_second") for runs in found.values()]


def report(seconds: int) -> list[str]:
    """Return goals (for 30 s) and cells in Markdown."""
    measured = rows(seconds)
    lines = ["| goal | wanted | reached |", "|---|---|---|"]
    for many, wanted in WANTED.items() if seconds == SECONDS else ():
        speed = {row["who"]: row["per_second"] for row in measured if row["concurrency"] == many}
        peers = [value for who, value in speed.items() if who.startswith("faster-whisper")]
        reached = f"**{speed['Conch'] / max(peers):.2f}**" if "Conch" in speed and peers else "not measured"
        lines.append(f"| {many} in flight: × faster-whisper's best | {wanted} | {reached} |")
    lines += ["", "| | in flight | clips | clips/s | p50 | p95 | wrong words | MB |", "|" + "---|" * 8]
    for row in sorted(measured, key=lambda row: (row["concurrency"], -row["per_second"])):
        rate = "" if row["wer"] is None else f"{row['wer']} %"
        pace = f"{row['per_second']:g}{spread(row)}"
        numbers = f"{row['requests']} | {pace} | {row['p50']:.2f} | {row['p95']:.2f} | {rate}"
        lines.append(f"| {row['who']} | {row['concurrency']} | {numbers} | {row['memory']:g} |")
    return lines


def measure(made: list[Recording], run: int, seconds: int, *, cpp: bool) -> None:
    """Measure all missing cells of one run. `cpp`: include whisper.cpp."""
    for many in CONCURRENCY:
        ways: dict[str, tuple[Any, int]] = {"Conch": (through_gateway(made), 0)}
        for threads, workers, batch in SETTINGS[many]:
            name = f"faster-whisper int8, {threads} threads, {workers} workers"
            ways[name + ", batched" * bool(batch)] = (faster_whisper(made, threads, workers, batch), batch)
        for threads, models in MODELS[many] if cpp else ():
            name = f"whisper.cpp float16, {threads} threads, {models} models"
            ways[name] = (whisper_cpp(made, threads, models, seconds), 0)
        for name, (way, batch) in ways.items():
            if not (kept := path(name, many, run, seconds)).exists():
                with way as (call, memory):
                    cell(name, many, made, call, memory, kept, seconds, batch)


def main() -> None:
    """Measure what is missing, then print all results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--runs", type=int, default=1, help="of everybody, in turns; medians are reported")
    parser.add_argument("--no-cpp", action="store_true", help="without whisper.cpp, which is slow")
    parser.add_argument("--seconds", type=int, default=SECONDS, help="the longest clip, 5 to 30")
    given = parser.parse_args()
    if given.again:
        shutil.rmtree(KEPT / str(given.seconds), ignore_errors=True)
    made = clips(given.seconds)
    for run in range(given.runs):
        measure(made, run, given.seconds, cpp=not given.no_cpp)
    print("\n".join([machine(), "", *report(given.seconds)]))


if __name__ == "__main__":
    main()
