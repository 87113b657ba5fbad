"""The bundled recordings transcribed by other people's code: the checkpoint is a Whisper, not a
look-alike.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

from ctranslate2.converters import TransformersConverter
from faster_whisper import WhisperModel, decode_audio
from transformers import pipeline

from .recordings import FOLDER
from .voices import RATE


def recordings() -> dict[str, dict[str, Any]]:
    """The rows of recordings.json by file name: language, seconds, text, segments."""
    return {row["name"]: row for row in json.loads((FOLDER / "recordings.json").read_text("utf-8"))}


def by_transformers(checkpoint: Path) -> dict[str, str]:
    """The texts of transformers' own pipeline, greedy, with its sequential decoding of recordings
    over 30 s.
    """
    speech = pipeline("automatic-speech-recognition", model=str(checkpoint), device="cpu", dtype="float32")
    options = {"task": "transcribe", "num_beams": 1}
    return {
        name: speech(
            {"raw": decode_audio(str(FOLDER / name)), "sampling_rate": RATE},
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
        converted, files = f"{folder}/model", ["tokenizer.json", "preprocessor_config.json"]
        TransformersConverter(str(checkpoint), copy_files=files).convert(converted)
        model = WhisperModel(converted, device="cpu", compute_type="float32")
        texts = {}
        for name, row in recordings().items():
            parts, _ = model.transcribe(str(FOLDER / name), language=row["language"])
            texts[name] = "".join(part.text for part in parts)
        return texts
