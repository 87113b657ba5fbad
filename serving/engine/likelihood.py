"""Compute a text's log probabilities where the engine's own are tempered.

openai/whisper (decoding.py) rates a text by the log probabilities that the model gave its tokens, at any
temperature. TensorRT-LLM returns those after the temperature, which a low temperature pushes towards 0, so
there they are computed from the logits, which a stream returns one token at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..arrays import scalar
from ..triton.rows import grown
from .sampling import log_softmax

Arrays = dict[str, NDArray[Any]]
Engine = Callable[[Arrays, bool], Iterator[Arrays]]


def untempered(engine: Engine) -> Engine:
    """Wrap an engine of one sequence so that log probabilities are those before the temperature; other
    requests pass unchanged.

    In a stream the end of a text has none, so `cum_log_probs` is the sum of its tokens'.
    """

    def ask(arrays: Arrays, streaming: bool) -> Iterator[Arrays]:
        if (
            scalar(arrays, "beam_width", 1) > 1
            or "temperature" not in arrays
            or arrays["temperature"].item() in (0.0, 1.0)
        ):
            return engine(arrays, streaming)
        flags = {"streaming": np.array([[True]]), "return_generation_logits": np.array([[True]])}
        results = _judged(
            engine({**arrays, **flags}, True), arrays.get("embedding_bias", np.zeros((1, 1), np.float32))
        )
        return results if streaming else iter([list(grown(results))[-1]])

    return ask


def _judged(results: Iterator[Arrays], bias: NDArray[np.float32]) -> Iterator[Arrays]:
    """Yield responses [1, 1, new] with log probabilities of their new tokens and the sum of all so far."""
    total = 0.0
    for result in results:
        ids = result["output_ids"].ravel()[: int(result["sequence_length"].item())]
        logits = result["generation_logits"].reshape(-1, result["generation_logits"].shape[-1])[
            : len(ids), : bias.shape[1] if bias.shape[1] > 1 else None
        ]
        probs = (
            log_softmax(logits.astype(np.float32) + bias)[np.arange(len(ids)), ids]
            if len(ids)
            else np.zeros(0, np.float32)
        )
        total += float(probs.sum())
        kept = {name: array for name, array in result.items() if name != "generation_logits"}
        yield {
            **kept,
            "output_log_probs": probs.astype(np.float32)[None, None],
            "cum_log_probs": np.array([[total]], np.float32),
        }
