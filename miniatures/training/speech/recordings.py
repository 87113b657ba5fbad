"""Recordings with their true texts and times: `python -m miniatures.training.speech.recordings` writes
the eight bundled ones.

`record` makes as many more as tests and benchmarks want, of any length, from any corpus.
"""

from __future__ import annotations

import json
import random
from dataclasses import asdict, dataclass
from pathlib import Path

import av
import numpy as np
from numpy.typing import NDArray
from scipy.signal import resample_poly

from .clips import Clipper, SpeechClip
from .corpus import make_corpus
from .voices import RATE

FOLDER = Path(__file__).parents[2] / "recordings"


@dataclass(frozen=True)
class Form:
    """How a recording is stored."""

    name: str
    language: str
    seconds: float
    rate: int
    channels: int
    codec: str


BUNDLED = (
    Form("order.wav", "en", 1.6, 16_000, 1, "pcm_s16le"),
    Form("telephone.wav", "en", 5, 8_000, 1, "pcm_s16le"),
    Form("demo.flac", "en", 10, 44_100, 2, "flac"),
    Form("cocina.mp3", "es", 12, 44_100, 1, "mp3"),
    Form("museo.ogg", "es", 20, 16_000, 1, "libopus"),
    Form("letter.m4a", "en", 26, 44_100, 2, "aac"),
    Form("minute.wav", "en", 65, 16_000, 1, "pcm_s16le"),
    Form("largo.flac", "es", 90, 16_000, 1, "flac"),
)


def record(clipper: Clipper, seconds: float, language: str) -> tuple[SpeechClip, NDArray[np.float32]]:
    """A clip of about `seconds` and its sound, with a little noise, cut half a second after the last word."""
    clip = SpeechClip(language, 0)
    while not clip.segments:
        clip = clipper.speech(int(seconds * RATE), language=language)
    length = min(int((clip.segments[-1].end + 0.5) * RATE), clip.samples)
    noise = np.random.default_rng(clipper.rng.randrange(2**31)).standard_normal(clip.samples)
    return clip, (clipper.wave(clip) + 0.001 * noise).astype(np.float32)[:length]


def encode(wave: NDArray[np.float32], path: Path, rate: int, channels: int, codec: str) -> None:
    """Write float32 mono at 16 kHz as an audio file of another rate, channel count and codec."""
    wave = resample_poly(wave, rate, RATE).astype(np.float32)
    samples = (np.clip(wave, -1, 1) * 32767).astype(np.int16)
    layout = "mono" if channels == 1 else "stereo"
    with av.open(str(path), "w") as container:
        stream = container.add_stream(codec, rate=48_000 if codec == "libopus" else rate, layout=layout)
        frame = av.AudioFrame.from_ndarray(np.repeat(samples, channels)[None], format="s16", layout=layout)
        frame.sample_rate, size = rate, stream.frame_size or None
        resampler = av.AudioResampler(stream.format, stream.layout, stream.rate, frame_size=size)
        for piece in [*resampler.resample(frame), *resampler.resample(None)]:
            container.mux(stream.encode(piece))
        container.mux(stream.encode(None))


def main() -> None:
    """Write miniatures/recordings: eight files and recordings.json."""
    FOLDER.mkdir(exist_ok=True)
    clipper = Clipper(make_corpus(400, seed=2026, held_out=True), random.Random(2026))
    rows = []
    for form in BUNDLED:
        clip, wave = record(clipper, form.seconds, form.language)
        encode(wave, FOLDER / form.name, form.rate, form.channels, form.codec)
        segments = [
            {"text": s.text, "start": round(s.start, 2), "end": round(s.end, 2)} for s in clip.segments
        ]
        found = {"seconds": round(len(wave) / RATE, 2), "text": clip.text(), "segments": segments}
        rows.append({**asdict(form), **found})
    (FOLDER / "recordings.json").write_text(json.dumps(rows, indent=1, ensure_ascii=False) + "\n", "utf-8")


if __name__ == "__main__":
    main()
