"""`make bench`: Conch beside faster-whisper and transformers on the same random weights, in one run.

Whisper-base shape. First table, equal work: greedy, TOKENS ids for every clip, no fallback, the same threads.
Second table: what each does when nothing is set but the language. Writes
docs/benchmarks/whisper-base-cpu.{md,json,png}. Clips are 16 kHz WAV files for the gateway and arrays for
everybody else; the time to decode them is reported apart.
"""

from __future__ import annotations

import argparse
import dataclasses
import io
import json
import tempfile
import threading
import time
import wave as riff
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from numpy.typing import NDArray

from gateway.audio import media
from gateway.triton import decode, encode
from ops.local import HOST, LocalDeployment

from .stage import DOCS, WORK, cores, group_memory, machine, own_memory, peer, running

Floats = NDArray[np.float32]
RATE = 16_000
TOKENS = 48
LENGTHS = (3, 10, 30)
CONCURRENCY = (1, 8)
PREFIX = "<|startoftranscript|><|en|><|transcribe|><|notimestamps|>"
DEFAULTS = ", defaults"
OVERHEAD_REQUESTS = 300


@dataclass(frozen=True)
class Cell:
    """One measurement; latencies and overheads in seconds, memory in MB."""

    who: str
    seconds: int
    concurrency: int
    requests: int
    rtfx: float
    per_second: float
    p50: float
    p95: float
    p99: float
    memory: float


def sound(seconds: int, seed: int) -> Floats:
    """Noise with a slow envelope; random weights do not care."""
    random = np.random.default_rng(seed)
    return (0.1 * random.standard_normal(seconds * RATE)).astype(np.float32)


def measure(
    who: str,
    seconds: int,
    concurrency: int,
    requests: int,
    call: Callable[[Any], None],
    memory: Callable[[], float],
    per_call: int = 1,
    prepare: Callable[[Floats], Any] = lambda clip: clip,
) -> Cell:
    """Call with distinct clips from `concurrency` threads. `per_call`: clips that one call handles together;
    `prepare` is not timed.
    """
    clips = [prepare(sound(seconds, i)) for i in range(requests)]
    call(clips[0])
    latencies: list[float] = []
    lock = threading.Lock()

    def timed(clip: Any) -> None:
        begin = time.perf_counter()
        call(clip)
        with lock:
            latencies.append(time.perf_counter() - begin)

    started = time.perf_counter()
    with ThreadPoolExecutor(concurrency) as pool:
        list(pool.map(timed, clips))
    wall = time.perf_counter() - started
    done = requests * per_call
    p50, p95, p99 = (round(float(np.percentile(latencies, p)), 4) for p in (50, 95, 99))
    cell = Cell(
        who,
        seconds,
        concurrency,
        done,
        round(done * seconds / wall, 1),
        round(done / wall, 2),
        p50,
        p95,
        p99,
        round(memory()),
    )
    print(json.dumps(dataclasses.asdict(cell)), flush=True)
    return cell


# --- Conch ----------------------------------------------------------------------------------------


def wav(clip: Floats) -> bytes:
    """16-bit WAV."""
    buffer = io.BytesIO()
    with riff.open(buffer, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(RATE)
        file.writeframes((np.clip(clip, -1, 1) * 32767).astype("<i2").tobytes())
    return buffer.getvalue()


def gateway_call(layout: LocalDeployment, model: str, tokens: int | None = TOKENS) -> Callable[[bytes], None]:
    """Through nginx and the gateway, with a WAV file."""
    client = httpx.Client(base_url=f"http://{HOST}:{layout.port}", timeout=300)
    fields = {"model": model, "language": "en", **({} if tokens is None else {"max_tokens": str(tokens)})}

    def call(file: bytes) -> None:
        client.post(
            "/v1/audio/transcriptions", files={"file": ("a.wav", file)}, data=fields
        ).raise_for_status()

    return call


def triton_call(layout: LocalDeployment, tokens: int = TOKENS) -> Callable[[Floats], None]:
    """KServe, through nginx and the guard."""
    client = httpx.Client(base_url=f"http://{HOST}:{layout.kserve_http}", timeout=300)

    def call(clip: Floats) -> None:
        arrays = {
            "WAV": clip[None],
            "TEXT_PREFIX": np.array([[PREFIX.encode()]], object),
            "MAX_TOKENS": np.array([[tokens]], np.int32),
        }
        body, headers = encode(arrays, ["TOKENS"], "")
        answer = client.post("/v2/models/whisper_bls/infer", content=body, headers=headers)
        answer.raise_for_status()
        made = decode(answer, ["TOKENS"])["TOKENS"].shape[1]
        assert made >= tokens - 1, f"only {made} tokens were made: unequal work"

    return call


def conch(model: str, requests: int) -> list[Cell]:
    """Both ways into one instance, and the gateway with nothing set."""
    cells = []
    label = "Conch, unpadded" if model.endswith("unpadded") else "Conch"
    with running(model) as (layout, process):
        memory = partial(group_memory, process.pid)
        for seconds in LENGTHS:
            for concurrency in CONCURRENCY:
                count = requests if concurrency > 1 else max(8, requests // 3)
                cells.append(
                    measure(
                        f"{label}, direct at Triton", seconds, concurrency, count, triton_call(layout), memory
                    )
                )
                cells.append(
                    measure(
                        f"{label}, gateway",
                        seconds,
                        concurrency,
                        count,
                        gateway_call(layout, model),
                        memory,
                        prepare=wav,
                    )
                )
        if label == "Conch":
            cells.append(
                measure(
                    f"{label}{DEFAULTS}", 30, 1, 4, gateway_call(layout, model, None), memory, prepare=wav
                )
            )
    return cells


def overhead() -> float:
    """Median seconds that gateway and nginx add to a one-second clip of the miniature, decoding included; the
    calls take turns.
    """
    with running("mini-whisper") as (layout, _):
        clip = sound(1, 0)
        ways = [(triton_call(layout, 1), clip), (gateway_call(layout, "mini-whisper", 1), wav(clip))]
        times = np.zeros((OVERHEAD_REQUESTS, 2))
        for row in times:
            for way, (call, given) in enumerate(ways):
                begin = time.perf_counter()
                call(given)  # type: ignore[operator]
                row[way] = time.perf_counter() - begin
    direct, gateway = np.median(times[20:], axis=0)
    return float(gateway - direct)


# --- peers, each in a process of its own ----------------------------------------------------------


def faster_whisper(checkpoint: Path, threads: int, requests: int) -> list[Cell]:
    """CTranslate2 int8, greedy; at concurrency 8 by threads, and its batched pipeline with the clips in one
    recording.
    """
    from ctranslate2.converters import TransformersConverter
    from faster_whisper import BatchedInferencePipeline, WhisperModel

    converted = checkpoint.parent / "ct2"
    if not converted.exists():
        TransformersConverter(
            str(checkpoint), copy_files=["tokenizer.json", "preprocessor_config.json"]
        ).convert(str(converted), quantization="int8")
    model = WhisperModel(
        str(converted), device="cpu", compute_type="int8", cpu_threads=threads, num_workers=1
    )
    equal = {
        "language": "en",
        "beam_size": 1,
        "temperature": 0.0,
        "max_new_tokens": TOKENS,
        "without_timestamps": True,
        "suppress_tokens": [],
    }
    single = {
        "condition_on_previous_text": False,
        "compression_ratio_threshold": None,
        "log_prob_threshold": None,
        "no_speech_threshold": None,
    }

    def call(clip: Floats) -> None:
        list(model.transcribe(clip, **equal, **single)[0])

    pipeline, cells = BatchedInferencePipeline(model), []
    for seconds in LENGTHS:
        cells.append(measure("faster-whisper int8", seconds, 1, max(6, requests // 4), call, own_memory))
        cells.append(measure("faster-whisper int8", seconds, 8, max(8, requests // 2), call, own_memory))

        def batched(clip: Floats, seconds: int = seconds) -> None:
            stamps = [{"start": i * seconds, "end": (i + 1) * seconds} for i in range(8)]
            list(
                pipeline.transcribe(
                    np.tile(clip, 8), **equal, vad_filter=False, clip_timestamps=stamps, batch_size=8
                )[0]
            )

        cells.append(measure("faster-whisper int8, batched", seconds, 1, 2, batched, own_memory, per_call=8))

    def by_default(clip: Floats) -> None:
        list(model.transcribe(clip, language="en")[0])

    cells.append(measure(f"faster-whisper int8{DEFAULTS}", 30, 1, 2, by_default, own_memory))
    return cells


def transformers(checkpoint: Path, threads: int, requests: int) -> list[Cell]:
    """f32 generate; at concurrency 8 as one static batch."""
    import torch
    from transformers import WhisperFeatureExtractor, WhisperForConditionalGeneration

    torch.set_num_threads(threads)
    model, extract, cells = (
        WhisperForConditionalGeneration.from_pretrained(checkpoint).eval(),
        WhisperFeatureExtractor(),
        [],
    )

    def batch(size: int) -> Callable[[Floats], None]:
        def call(clip: Floats) -> None:
            features = extract([clip] * size, sampling_rate=RATE, return_tensors="pt").input_features
            ids = torch.tensor([[50258, 50259, 50359, 50363]] * size)
            with torch.no_grad():
                model.generate(
                    features,
                    decoder_input_ids=ids,
                    max_new_tokens=TOKENS,
                    min_new_tokens=TOKENS,
                    num_beams=1,
                    do_sample=False,
                )

        return call

    for seconds in LENGTHS:
        cells.append(measure("transformers f32", seconds, 1, max(4, requests // 6), batch(1), own_memory))
        cells.append(measure("transformers f32, batch of 8", seconds, 1, 2, batch(8), own_memory, per_call=8))

    def by_default(clip: Floats) -> None:
        model.generate(extract(clip, sampling_rate=RATE, return_tensors="pt").input_features, language="en")

    cells.append(measure(f"transformers f32{DEFAULTS}", 30, 1, 2, by_default, own_memory))
    return cells


PEERS = {"faster-whisper": faster_whisper, "transformers": transformers}


def checkpoint_folder() -> Path:
    """The random weights in Hugging Face layout: the same seed as the bundle's."""
    folder = WORK / "checkpoint"
    if not (folder / "model.safetensors").exists():
        import torch
        from transformers import GenerationConfig, WhisperFeatureExtractor

        from build.checkpoints.whisper import random_model
        from build.whisper_vocabulary import whisper_tokenizer

        torch.manual_seed(0)
        model = random_model("whisper-base")
        languages = {
            "lang_to_id": {"<|en|>": 50259},
            "task_to_id": {"transcribe": 50359},
            "is_multilingual": True,
            "no_timestamps_token_id": 50363,
        }
        model.generation_config = GenerationConfig(
            eos_token_id=50257, pad_token_id=50257, decoder_start_token_id=50258, **languages
        )
        model.save_pretrained(folder)
        WhisperFeatureExtractor().save_pretrained(folder)
        whisper_tokenizer(99).save(str(folder / "tokenizer.json"))
    return folder


# --- report ---------------------------------------------------------------------------------------


def ratio(cells: Sequence[Cell], ours: str, seconds: int, concurrency: int, peers: str) -> float:
    """Our clips per second over the best figure of a peer at the same number of clips in flight."""
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
    """Median time to decode a clip's WAV file, as the gateway does."""
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
    """Goal, wanted, reached."""
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
            f"gateway and nginx over direct Triton at p50 of {OVERHEAD_REQUESTS} one-second clips, without "
            "decoding, ms (at most)",
            2.0,
            1000 * (added - decoding_seconds(1)),
        ),
    ]


def table(cells: Sequence[Cell]) -> list[str]:
    """Markdown rows."""
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
    """Markdown, JSON and a plot."""
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
        "few per cent, and overheads of some ms beside",
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
    """Clips per second, one panel for each clip length."""
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


def main() -> None:
    """Measure everybody, or one peer in this process."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peer", choices=PEERS)
    parser.add_argument("--requests", type=int, default=32)
    arguments = parser.parse_args()
    if arguments.peer:
        PEERS[arguments.peer](checkpoint_folder(), cores(), arguments.requests)
        return
    cells = conch("random-base", arguments.requests) + conch("random-base-unpadded", arguments.requests)
    rows = [
        row
        for name in PEERS
        for row in peer("scripts.benchmarks.speech", "--peer", name, "--requests", str(arguments.requests))
    ]
    cells += [Cell(**row) for row in rows]
    added = overhead()
    report(cells, added)
    for name, wanted, reached in goals(cells, added):
        print(f"{name}: {wanted:g}, reached {reached:.2f}")


if __name__ == "__main__":
    main()
