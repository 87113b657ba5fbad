"""Turn the engine's results for one recording into the outputs of `whisper_bls`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..text.arrays import objects
from .tokens import Prompt, WhisperVocabulary

Arrays = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class Detection:
    """What the model predicts right after <|startoftranscript|>: the likeliest language and the no-speech
    probability.
    """

    language: str | None
    no_speech: float


def outputs(
    vocabulary: WhisperVocabulary,
    result: Arrays,
    prompt: Prompt,
    detection: Detection,
    duration: float,
    limit: int,
) -> Arrays:
    """Make the façade's outputs for one row. `duration` is the audio's in seconds, `limit` the number of
    tokens that were allowed.
    """
    count = int(result["sequence_length"].ravel()[0])
    tokens = [int(i) for i in result["output_ids"][0, 0, :count]]
    log_probs = result["output_log_probs"][0, 0, :count]
    total = float(result["cum_log_probs"].ravel()[0])
    segments = vocabulary.segments(tokens, duration)
    return {
        "TRANSCRIPTS": strings([vocabulary.text(tokens)])[0],
        "LANGUAGE": strings([prompt.language or ""]),
        "NO_SPEECH_PROB": np.array([[detection.no_speech]], np.float32),
        "AVG_LOGPROB": np.array([[total / (count + 1)]], np.float32),
        "TRUNCATED": np.array([[count >= limit]]),
        "PROMPT_TOKENS": np.array([[len(prompt.ids)]], np.int32),
        "TOKENS": np.array([tokens], np.int32).reshape(1, -1),
        "TOKEN_LOGPROBS": log_probs.astype(np.float32)[None],
        "TOKEN_BYTES": objects([vocabulary.token_bytes(token) for token in tokens])[None],
        "SEGMENT_TEXTS": strings([segment.text for segment in segments]),
        "SEGMENT_TIMES": np.array([[segment.start, segment.end] for segment in segments], np.float32).reshape(
            1, -1, 2
        ),
        "SEGMENT_SIZES": np.array([[len(segment.tokens) for segment in segments]], np.int32).reshape(1, -1),
    }


def cut_off(result: Arrays, limit: int) -> Arrays:
    """Return the engine's result for one sequence as if `limit` tokens had been requested: without the one
    beyond it, or the end of text, which is a step as well.
    """
    if int(result["sequence_length"].ravel()[0]) < limit:
        return result
    log_probs = result["output_log_probs"][:, :, :limit]
    return {
        **result,
        "output_ids": result["output_ids"][:, :, :limit],
        "output_log_probs": log_probs,
        "cum_log_probs": log_probs.sum(-1),
        "sequence_length": np.array([[limit]], np.int32),
    }


def strings(texts: list[str]) -> NDArray[Any]:
    """Make Triton's strings: an object array of UTF-8 bytes [1, n]."""
    return objects(texts)[None]
