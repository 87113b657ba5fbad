"""Long recordings made of known sentences: no word lost or doubled at any cut, true offsets, silence stays
silent, memory stays bounded. `make attack` takes the longest ones (LONG_HOURS).
"""

from __future__ import annotations

import difflib
import os
import random
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import jiwer
import numpy as np
import pytest
from numpy.typing import NDArray

from miniatures.training.speech.clips import Clipper, SpeechClip
from miniatures.training.speech.corpus import Corpus, make_corpus
from miniatures.training.speech.recordings import record
from ops.ranks import descendants

from .clients import pcm, wav
from .conftest import Stack
from .processes import gateway, tritonserver

RATE = 16_000
HOURS = float(os.environ.get("LONG_HOURS", "0"))
LENGTHS = (65, 600, 1500, 3600) if HOURS else (65, 300)  # seconds
Floats = NDArray[np.float32]


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    return make_corpus(240 if HOURS else 120, seed=91, held_out=True)


def transcribe(stack: Stack, content: bytes, **fields: str) -> httpx.Response:
    form = {"model": "mini-whisper", "response_format": "verbose_json", **fields}
    answer = stack.transcribe(content, timeout=600, **form)
    assert answer.status_code == 200, answer.text
    return answer


@pytest.fixture(scope="module")
def alone(stack: Stack, corpus: Corpus) -> dict[int, str]:
    """What the model hears in each sentence by itself."""

    def heard(i: int) -> str:
        wave = np.concatenate(
            [np.zeros(RATE // 5, np.float32), corpus.wave(i), np.zeros(RATE // 2, np.float32)]
        )
        noise = 0.001 * np.random.default_rng(i).standard_normal(len(wave))
        return str(transcribe(stack, pcm(wave + noise), language=corpus.languages[i]).json()["text"])

    with ThreadPoolExecutor(8) as threads:
        return dict(enumerate(threads.map(heard, range(len(corpus.languages)))))


def offsets(clip: SpeechClip, segments: list[dict[str, float | str]]) -> list[float]:
    """Distances between true and found beginnings of the sentences that were transcribed without an error."""
    true, found = [segment.text for segment in clip.segments], [segment["text"] for segment in segments]
    pairs = difflib.SequenceMatcher(None, true, found, autojunk=False).get_matching_blocks()
    return [
        abs(clip.segments[a + k].start - float(segments[b + k]["start"]))
        for a, b, size in pairs
        for k in range(size)
    ]


@pytest.mark.parametrize(
    ("seconds", "language"), [(65, "es"), *zip(LENGTHS, ("en", "es", "es", "en"), strict=False)]
)
def test_no_word_is_lost_at_a_cut(
    stack: Stack,
    corpus: Corpus,
    alone: dict[int, str],
    seconds: int,
    language: str,
    record_property: pytest.RecordProperty,
) -> None:
    """The word error rate is that of the sentences alone, within a point; so no cut loses or doubles one. In
    all there are at least 11 cuts, with LONG_HOURS 189.
    """
    clip, wave = record(Clipper(corpus, random.Random(seconds)), seconds, language)
    started = time.monotonic()
    # An hour of 16-bit PCM is over the upload limit; of 8 bits it is not.
    answer = transcribe(stack, pcm(wave) if seconds < 3600 else mulaw(wave), language=language).json()
    took = time.monotonic() - started
    rate = jiwer.wer(clip.text(), answer["text"])
    apart = jiwer.wer(clip.text(), " ".join(alone[i] for i, _ in clip.pieces))
    cuts = len({segment["seek"] for segment in answer["segments"]}) - 1
    found = offsets(clip, answer["segments"])
    print(
        f"\n{seconds} s {language}: WER {rate:.4f}, alone {apart:.4f}, {cuts} cuts, worst offset "
        f"{max(found):.3f} s, {len(wave) / RATE / took:.0f} x real time"
    )
    record_property("cuts", cuts)
    assert abs(rate - apart) <= 0.01
    assert cuts >= seconds // 30 - 1
    assert len(found) >= 0.97 * len(clip.segments)
    # The first word of a sentence that follows the one before without a rest may be taken for its tail.
    assert sum(off > 0.3 for off in found) <= len(found) / 100
    assert max(found) <= 1.0
    assert answer["duration"] == pytest.approx(len(wave) / RATE, abs=0.1)


def mulaw(wave: Floats, rate: int = RATE) -> bytes:
    """A RIFF file of G.711 mu-law, one byte a sample (ITU-T G.711)."""
    magnitude = np.abs(np.clip(wave, -1, 1) * 32635).astype(np.int32) + 132
    exponent = np.floor(np.log2(magnitude)).astype(np.int32) - 7
    mantissa = (magnitude >> (exponent + 3)) & 15
    return wav(~((np.where(wave < 0, 128, 0) | (exponent << 4) | mantissa).astype(np.uint8)), rate=rate)


def quiet_sounds() -> Iterator[tuple[str, Floats]]:
    rng, t = np.random.default_rng(4), np.arange(200 * RATE) / RATE
    yield "silence", np.zeros(len(t), np.float32)
    yield "noise", (0.05 * rng.standard_normal(len(t))).astype(np.float32)
    yield (
        "tones",
        (0.3 * np.sin(2 * np.pi * 440 * t) * (np.floor(t) % 2) + 0.1 * np.sin(2 * np.pi * 1000 * t)).astype(
            np.float32
        ),
    )


def test_ten_minutes_without_speech_give_no_words(stack: Stack) -> None:
    """Silence, noise and tones in a row."""
    answer = transcribe(stack, pcm(np.concatenate([wave for _, wave in quiet_sounds()]))).json()
    assert (answer["text"], answer["segments"], round(answer["duration"])) == ("", [], 600)


def memory(pids: list[int]) -> float:
    """Proportional set size in MB (proc(5), smaps_rollup); a process that ended counts nothing."""
    total = 0
    for pid in pids:
        rollup = Path(f"/proc/{pid}/smaps_rollup")
        try:
            total += next(
                int(line.split()[1]) for line in rollup.read_text().splitlines() if line.startswith("Pss:")
            )
        except (FileNotFoundError, ProcessLookupError, StopIteration):
            continue
    return total / 1000


def test_hours_in_bounded_memory(stack: Stack, corpus: Corpus) -> None:
    """Gateway and one tritonserver grow by at most 400 MB while ten minutes, or HOURS, pass through them,
    whatever ran before.
    """
    seconds = 1200 if HOURS else 600
    clip, wave = record(Clipper(corpus, random.Random(9)), seconds, "en")
    times = round(3 * HOURS) or 1
    content = mulaw(np.tile(wave[::2], times), rate=8000)
    transcribe(stack, pcm(wave[: 120 * RATE]))  # buffers and kernels that stay come with the first windows
    server = tritonserver(stack, 0)
    pids = [gateway(stack, 0), gateway(stack, 1), server, *descendants(server)]
    idle, peak, stopping = memory(pids), [0.0], threading.Event()

    def watch() -> None:
        while not stopping.wait(0.3):
            peak[0] = max(peak[0], memory(pids))

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        started = time.monotonic()
        answer = transcribe(stack, content, language="en").json()
        took = time.monotonic() - started
    finally:
        stopping.set()
        watcher.join()
    rate = jiwer.wer(" ".join([clip.text()] * times), answer["text"])
    print(
        f"\n{seconds * times} s: {answer['duration'] / took:.0f} x real time, {idle:.0f} MB idle, "
        f"{peak[0]:.0f} MB at most, WER {rate:.3f}"
    )
    assert answer["duration"] > (seconds - 10) * times
    # 219 were seen on a fresh stack with decoders in f32; what grows next to their memories is not known.
    assert peak[0] - idle <= 400
    assert rate < 0.2, "telephone band and 8 bits are hard for the miniature, but it is the same recording"
