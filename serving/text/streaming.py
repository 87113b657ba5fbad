"""Streamed texts: responses for one sequence, cut before stop words, in whole characters."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..engine.stop_words import StopFilter, StreamedToken, words_in
from ..triton.rows import newest
from .arrays import Arrays, objects
from .model import TextModel
from .tokens import GrowingText

# Outputs with a place for each token: [rows, beams, tokens, …].
BY_TOKEN = (
    "output_ids",
    "output_log_probs",
    "generation_logits",
    "output_token_ids",
    "output_tokens",
    "top_tokens",
    "top_token_log_probs",
)


def growing(
    model: TextModel, results: Iterable[Arrays], request: Arrays, *, accumulate: bool
) -> Iterator[Arrays]:
    """Yield the responses of a one-sequence stream with their text: what is new, or the text so far. A
    possible start of a stop word is held back; the remainder comes in a response of its own.
    """
    text, written = GrowingText(model.tokenizer, skip_special=model.skip_special), 0
    stop = StopFilter(words_in(request["stop_words_list"][0]))
    for result in results:
        shown = stop.add(_streamed_tokens(result))
        written += len(shown)
        piece = text.add([token.token for token in shown])
        kept = {name: array for name, array in result.items() if name not in BY_TOKEN}
        texts = {"text_output": objects([text.so_far if accumulate else piece])}
        yield kept | _arrays(shown, result) | texts | counts(request, np.array([[written]]))
    shown = stop.rest()
    piece = text.add([token.token for token in shown]) + text.rest()
    if shown or piece:
        texts = {"text_output": objects([text.so_far if accumulate else piece])}
        total = counts(request, np.array([[written + len(shown)]]))
        yield (_arrays(shown, {}) if shown else {}) | texts | total


def gathered(
    model: TextModel,
    results: Iterable[Arrays],
    request: Arrays,
    words: Sequence[bytes] = (),
    stop: Callable[[], None] | None = None,
) -> Arrays:
    """Join the responses of a one-sequence stream into one, which ends with the first that completes one of
    `words`; `stop` then ends the engine's request.
    """
    parts, end, longest = list[Arrays](), b"", max(map(len, words), default=0)
    for part in growing(model, results, request, accumulate=False):
        parts.append(part)
        if not (stop and words):
            continue
        end = end[-longest:] + part["text_output"].item()
        if any(word in end for word in words):
            stop()
            break
    by_token = {
        name: np.concatenate([part[name] for part in parts if name in part], 2)
        for name in BY_TOKEN
        if name in parts[0]
    }
    length = np.array([[by_token["output_ids"].shape[2]]], np.int32)
    whole = objects([b"".join(part["text_output"].item() for part in parts)])
    return {**parts[-1], **by_token, "sequence_length": length, "text_output": whole}


def counts(request: Arrays, written: NDArray[Any]) -> Arrays:
    """Count tokens that were read and generated, int32 [rows, 1] each, since not every release of
    TensorRT-LLM counts them.
    """
    return {
        "num_input_tokens": request["input_lengths"].reshape(-1, 1),
        "num_output_tokens": written.astype(np.int32),
    }


def _streamed_tokens(result: Arrays) -> list[StreamedToken]:
    """Return the new tokens of one response of a one-sequence stream. TensorRT-LLM's logits are [1, tokens,
    beams, vocabulary] there.
    """
    count = int(result["sequence_length"].item())
    ids = result["output_ids"].ravel()[:count].tolist()
    probs = (
        newest(result["output_log_probs"], count).tolist() if "output_log_probs" in result else [None] * count
    )
    logits = result.get("generation_logits")
    rows = [None] * count if logits is None else list(logits.reshape(-1, logits.shape[-1])[:count])
    return [StreamedToken(*one) for one in zip(ids, probs, rows, strict=True)]


def _arrays(shown: Sequence[StreamedToken], like: Mapping[str, Any]) -> Arrays:
    """Make the arrays of one sequence's tokens, with the outputs that the tokens have, or, without tokens,
    those of the response `like`.
    """
    count = len(shown)
    found: Arrays = {
        "output_ids": np.array([token.token for token in shown], np.int32)[None, None],
        "sequence_length": np.array([[count]], np.int32),
    }
    if "output_log_probs" in like or (shown and shown[0].log_prob is not None):
        found["output_log_probs"] = np.array([token.log_prob for token in shown], np.float32)[None, None]
    if shown and shown[0].logits is not None:
        rows = [token.logits for token in shown if token.logits is not None]
        found["generation_logits"] = np.stack(rows)[None, None]
    elif "generation_logits" in like:
        found["generation_logits"] = np.zeros((1, 1, 0, like["generation_logits"].shape[-1]), np.float32)
    return found
