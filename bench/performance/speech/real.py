"""Words and speed of real weights through the gateway, in one run, compared on the same weights with
faster-whisper and whisper.cpp, or on a GPU with transformers: `python -m bench.performance.speech.real`.

Clips of at most 30 s (or `--seconds`) are sentences of `bench/quality/` with short pauses: clean, in noise,
over music and by telephone in turns. Greedy, in English; every text ends by itself. A cell is kept in
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

from bench.quality.recordings import Recording, Utterance, conditions, join, utterances
from bench.quality.scores import Score, interval, score
from build.catalog import ROOT
from ops.local import HOST

from ..ggml import convert
from ..stage import WORK, cores, group_memory, machine, middle, own_memory, running, spread
from .cells import CONCURRENCY, RATE, timed_cell, wav

SECONDS = 30
WANTED = {1: 2.5, 8: 3.0}  # × the peer's best, for base on a CPU
GREEDY: dict[str, Any] = {"language": "en", "beam_size": 1, "temperature": 0.0, "without_timestamps": True}
# faster-whisper's settings: threads of a worker, workers, clips in a batch (0: one at a time).
SETTINGS = {1: [(cores(), 1, 0), (1, 1, 0)], 8: [(cores(), 1, 0), (1, cores(), 0), (cores(), 1, 8)]}
# whisper.cpp's: threads of a model, models.
MODELS = {1: [(cores(), 1)], 8: [(cores(), 1), (1, cores())]}
# Of the answers of Conch: the form's fields, and how its words are read.
FORMS: dict[str, tuple[dict[str, Any], Callable[[dict[str, Any]], str]]] = {
    "Conch": ({}, lambda body: str(body["text"])),
    "Conch, words": (
        {"response_format": "verbose_json", "timestamp_granularities[]": ["word", "segment"]},
        lambda body: " ".join(word["word"] for word in body["words"]),
    ),
}
Call = Callable[[int], str]
Way = Iterator[tuple[Call, Callable[[], float]]]


@dataclasses.dataclass(frozen=True)
class Bench:
    """What is measured: clips of at most `seconds`, on a GPU or on all cores, each cell in `kept`."""

    model: str
    gpu: bool
    seconds: int
    clips: tuple[Recording, ...]

    @property
    def target(self) -> str:
        """Return Conch's TARGET."""
        return "torch" if self.gpu else "openvino"

    @property
    def kept(self) -> Path:
        """Return where cells are stored."""
        return WORK / "real" / f"{self.model}-{self.target}-{len(self.clips)}x{self.seconds}"

    @contextmanager
    def through_gateway(self, name: str) -> Way:
        """Start one instance on all cores, or on a GPU; `Call` sends a WAV file."""
        files, (form, words) = [wav(one.wave) for one in self.clips], FORMS[name]
        data = {"model": self.model, "language": "en", "temperature": "0", "beam_width": "1", **form}
        engines, weights = ROOT / "engines", ROOT / "weights"
        with running(self.model, self.target, 1, engines, weights) as (layout, process):
            client = httpx.Client(trust_env=False, base_url=f"http://{HOST}:{layout.port}", timeout=600)

            def call(number: int) -> str:
                sound = {"file": ("a.wav", files[number])}
                answer = client.post("/v1/audio/transcriptions", files=sound, data=data)
                return words(answer.raise_for_status().json())

            yield call, partial(group_memory, process.pid)

    @contextmanager
    def faster_whisper(self, threads: int, workers: int, batch: int) -> Way:
        """Load CTranslate2 int8; with a batch, one call transcribes that many clips."""
        from faster_whisper import BatchedInferencePipeline, WhisperModel

        from bench.quality.peer import peer_folder

        folder = str(peer_folder(ROOT / "weights", self.model))
        model = WhisperModel(folder, compute_type="int8", cpu_threads=threads, num_workers=workers)
        pipeline = BatchedInferencePipeline(model)

        def alone(number: int) -> str:
            options = {**GREEDY, "condition_on_previous_text": False}
            return " ".join(part.text for part in model.transcribe(self.clips[number].wave, **options)[0])

        def together(number: int) -> str:
            waves = [self.clips[(number + i) % len(self.clips)].wave for i in range(batch)]
            ends = np.cumsum([len(wave) for wave in waves]) / RATE
            stamps = [{"start": b, "end": e} for b, e in zip([0.0, *ends[:-1]], ends, strict=True)]
            found = pipeline.transcribe(
                np.concatenate(waves), **GREEDY, vad_filter=False, clip_timestamps=stamps, batch_size=batch
            )[0]
            return " ".join(part.text for part in found)

        yield (together if batch else alone), own_memory

    @contextmanager
    def whisper_cpp(self, threads: int, models: int) -> Way:
        """Load it in float16; each model transcribes one clip at a time. Clips of less than 28 s are encoded
        with 2 s of silence (`audio_ctx`), as Conch does.
        """
        from pywhispercpp.model import Model

        file, layout = WORK / f"{self.model}.ggml", ROOT / f"weights/{self.model}.huggingface"
        if not file.exists():
            kind = "gpt2" if self.model.endswith(".en") else "multilingual"
            convert(layout, ROOT / f"build/assets/whisper/{kind}.tiktoken", file)
        free = Queue[Any]()
        for _ in range(models):
            free.put(Model(str(file), n_threads=threads, print_progress=False, print_realtime=False))
        options = {"language": "en", "temperature": 0.0, "temperature_inc": 0.0, "no_context": True}
        if self.seconds < 28:
            options["audio_ctx"] = 50 * (self.seconds + 2)

        def call(number: int) -> str:
            model = free.get()
            found = model.transcribe(self.clips[number].wave, greedy={"best_of": 1}, **options)
            free.put(model)
            return " ".join(part.text for part in found)

        yield call, own_memory

    @contextmanager
    def transformers(self, batch: int) -> Way:
        """Load float16 weights on the GPU; one call transcribes a batch, and returns its first text."""
        import torch
        from tokenizers import Tokenizer
        from transformers import WhisperFeatureExtractor, WhisperForConditionalGeneration

        folder = ROOT / f"weights/{self.model}.huggingface"
        device, dtype = ("cuda", torch.float16) if torch.cuda.is_available() else ("cpu", torch.float32)
        model = WhisperForConditionalGeneration.from_pretrained(folder, dtype=dtype).to(device).eval()
        extractor = WhisperFeatureExtractor(feature_size=model.config.num_mel_bins)
        vocabulary = Tokenizer.from_file(str(folder / "tokenizer.json"))
        settings, spoken = model.generation_config, {}
        settings.no_timestamps_token_id = vocabulary.token_to_id("<|notimestamps|>")
        if not self.model.endswith(".en"):
            settings.is_multilingual, spoken = True, {"language": "en", "task": "transcribe"}
            settings.lang_to_id = {"<|en|>": vocabulary.token_to_id("<|en|>")}
            settings.task_to_id = {"transcribe": vocabulary.token_to_id("<|transcribe|>")}

        def call(number: int) -> str:
            waves = [self.clips[(number + i) % len(self.clips)].wave for i in range(batch)]
            features = extractor(waves, sampling_rate=RATE, return_tensors="pt").input_features
            with torch.inference_mode():
                found = model.generate(features.to(device, dtype), num_beams=1, do_sample=False, **spoken)
            return str(vocabulary.decode(found[0].tolist()))

        yield call, own_memory

    def ways(self, many: int, *, cpp: bool) -> dict[str, tuple[Any, int]]:
        """Return what is measured with so many clips in progress: how, and the clips of one call (0: one)."""
        found: dict[str, tuple[Any, int]] = {name: (self.through_gateway(name), 0) for name in FORMS}
        if self.gpu:
            batch = many if many > 1 else 0
            return {**found, "transformers float16": (self.transformers(many), batch)}
        for threads, workers, batch in SETTINGS[1 if many == 1 else 8]:
            name = f"faster-whisper int8, {threads} threads, {workers} workers" + ", batched" * bool(batch)
            found[name] = (self.faster_whisper(threads, workers, batch), batch)
        for threads, models in MODELS[1 if many == 1 else 8] if cpp else ():
            name = f"whisper.cpp float16, {threads} threads, {models} models"
            found[name] = (self.whisper_cpp(threads, models), 0)
        return found

    def measure(self, run: int, many: int, *, cpp: bool) -> None:
        """Measure all missing cells of one run."""
        for name, (way, batch) in self.ways(many, cpp=cpp).items():
            kept = self.kept / str(run) / f"{name.replace(' ', '-').replace(',', '')}-{many}.json"
            if not kept.exists():
                with way as (call, memory):
                    row = self.cell(name, many, call, memory, batch)
                kept.parent.mkdir(parents=True, exist_ok=True)
                kept.write_text(json.dumps(row) + "\n", "utf-8")

    def cell(
        self, name: str, many: int, call: Call, memory: Callable[[], float], batch: int
    ) -> dict[str, Any]:
        """Measure one. A batch has no word error rate, since its words are those of several clips."""
        texts: dict[int, str] = {}

        def noted(number: int) -> None:
            texts[number] = call(number)

        numbers = range(0, len(self.clips), batch) if batch else range(len(self.clips))
        found = timed_cell(name, self.seconds, 1 if batch else many, numbers, noted, memory, batch or 1)
        audio = sum(len(one.wave) for one in self.clips) / RATE / len(self.clips)
        row = {**dataclasses.asdict(found), "concurrency": many, "machine": machine(), "wer": None}
        row["rtfx"] = round(found.per_second * audio, 1)  # clips are somewhat shorter than the longest
        if not batch:
            scores = [score(self.clips[i].text, text) for i, text in texts.items()]
            row |= {"wer": round(sum(scores, Score()).rate, 2), "interval": interval(scores)}
        return row

    def report(self) -> list[str]:
        """Return goals (for base, 30 s, on a CPU) and the middle run of each cell in Markdown."""
        found: dict[tuple[str, int], list[dict[str, Any]]] = {}
        for file in sorted(self.kept.glob("*/*.json")):
            row = json.loads(file.read_text("utf-8"))
            found.setdefault((row["system"], row["concurrency"]), []).append(row)
        measured = [middle(runs, "per_second") for runs in found.values()]
        lines = ["| goal | wanted | reached |", "|---|---|---|"]
        wanted = WANTED if (self.model, self.gpu, self.seconds) == ("base", False, SECONDS) else {}
        for many, goal in wanted.items():
            speed = {row["system"]: row["per_second"] for row in measured if row["concurrency"] == many}
            peers = [value for system, value in speed.items() if system.startswith("faster-whisper")]
            both = "Conch" in speed and peers
            reached = f"**{speed['Conch'] / max(peers):.2f}**" if both else "not measured"
            lines.append(f"| {many} in flight: × faster-whisper's best | {goal} | {reached} |")
        lines += ["", "| | in flight | clips | clips/s | RTFx | p50 | p95 | WER (95 %) | MB |"]
        lines.append("|" + "---|" * 9)
        for row in sorted(measured, key=lambda row: (row["concurrency"], -row["per_second"])):
            rate = "" if row["wer"] is None else "{} % ({}–{})".format(row["wer"], *row["interval"])
            pace = f"{row['per_second']:g}{spread(row)} | {row['rtfx']:g}"
            took = f"{row['p50']:.2f} | {row['p95']:.2f} | {rate} | {row['memory']:g}"
            lines.append(f"| {row['system']} | {row['concurrency']} | {row['requests']} | {pace} | {took} |")
        return lines


def clips(seconds: int, count: int) -> Iterator[Recording]:
    """Join sentences into clips, as many as fit, each made harder in the next way; sentences that are too
    long are skipped.
    """
    sentences = cycle(one for one in utterances(ROOT / "weights") if len(one.wave) / RATE + 0.6 <= seconds)
    harder = [*conditions(7).values()]
    parts, at, made = list[Utterance](), 0.0, 0
    while made < count:
        one = next(sentences)
        length = len(one.wave) / RATE + 0.6
        if at + length > seconds:
            clean = join(parts, (0.2, 0.6), made)
            yield dataclasses.replace(clean, wave=harder[made % len(harder)](clean.wave))
            parts, at, made = [], 0.0, made + 1
        parts, at = [*parts, one], at + length


def main() -> None:
    """Measure what is missing, then print all results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="base")
    parser.add_argument("--gpu", action="store_true", help="the torch engine; without, the CPU's")
    parser.add_argument("--clips", type=int, default=40)
    parser.add_argument("--concurrent", help="requests in progress; 1,8")
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--runs", type=int, default=1, help="of all systems, in turns; medians are reported")
    parser.add_argument("--no-cpp", action="store_true", help="without whisper.cpp, which is slow")
    parser.add_argument("--seconds", type=int, default=SECONDS, help="the longest clip, 5 to 30")
    given = parser.parse_args()
    bench = Bench(given.model, given.gpu, given.seconds, tuple(clips(given.seconds, given.clips)))
    if given.again:
        shutil.rmtree(bench.kept, ignore_errors=True)
    concurrency = tuple(map(int, given.concurrent.split(","))) if given.concurrent else CONCURRENCY
    for run, many in ((run, many) for run in range(given.runs) for many in concurrency):
        bench.measure(run, many, cpp=not given.no_cpp)
    print("\n".join([machine(), "", *bench.report()]))


if __name__ == "__main__":
    main()
