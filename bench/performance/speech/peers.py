"""faster-whisper and transformers, each in a process of its own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from ..stage import WORK, own_memory
from .cells import DEFAULTS, LENGTHS, RATE, TOKENS, Cell, Floats, measure


def faster_whisper(checkpoint: Path, threads: int, requests: int) -> list[Cell]:
    """Measure CTranslate2 int8, greedy; at concurrency 8 with threads, and its batched pipeline with the
    clips in one recording.
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
    """Measure generate in f32; at concurrency 8 as one static batch."""
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
    """Write the random weights in Hugging Face layout, with the bundle's seed."""
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
