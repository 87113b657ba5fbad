"""The bundled recordings transcribed by other people's code: the checkpoint is a Whisper, not a
look-alike.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import av
import numpy as np
from ctranslate2.converters import TransformersConverter
from faster_whisper import WhisperModel
from numpy.typing import NDArray
from transformers import pipeline

from .recordings import FOLDER
from .voices import RATE


def recordings() -> dict[str, dict[str, Any]]:
    """The rows of recordings.json by file name: language, seconds, text, segments."""
    return {row["name"]: row for row in json.loads((FOLDER / "recordings.json").read_text("utf-8"))}


def sound(name: str) -> NDArray[np.float32]:
    """A bundled recording as mono float32 at 16 kHz."""
    resampler = av.AudioResampler("flt", "mono", RATE)
    with av.open(str(FOLDER / name)) as file:
        frames = [
            piece for frame in file.decode(audio=0) for piece in resampler.resample(frame)
        ] + resampler.resample(None)
    return np.concatenate([frame.to_ndarray()[0] for frame in frames])


def by_transformers(checkpoint: Path) -> dict[str, str]:
    """The texts of transformers' own pipeline, greedy, with its sequential decoding of recordings
    over 30 s.
    """
    speech = pipeline("automatic-speech-recognition", model=str(checkpoint), device="cpu", dtype="float32")
    options = {"task": "transcribe", "num_beams": 1}
    return {
        name: speech(
            {"raw": sound(name), "sampling_rate": RATE},
            return_timestamps=True,
            generate_kwargs={**options, "language": row["language"]},
        )["text"]
        for name, row in recordings().items()
    }


def by_faster_whisper(checkpoint: Path) -> dict[str, str]:
    """The texts of faster-whisper after its own conversion, in float32, with its defaults: five beams,
    windows conditioned on each other.
    """
    with tempfile.TemporaryDirectory() as folder:
        converted = f"{folder}/model"
        TransformersConverter(
            str(checkpoint), copy_files=["tokenizer.json", "preprocessor_config.json"]
        ).convert(converted)
        model = WhisperModel(converted, device="cpu", compute_type="float32")
        return {
            name: "".join(part.text for part in model.transcribe(sound(name), language=row["language"])[0])
            for name, row in recordings().items()
        }  # fmt: skip
