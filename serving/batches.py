"""Requests with several rows: taken apart, and their results put together again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .errors import BadRequest

# What decides which results there are, and their shapes.
SHAPING = ("beam_width", "num_return_sequences", "return_log_probs", "return_generation_logits", "return_num_input_tokens", "return_num_output_tokens")
Arrays = dict[str, NDArray[Any]]


def split(inputs: Mapping[str, NDArray[Any]]) -> list[Arrays]:
    """One dictionary per row; every array keeps a leading dimension of 1.

    Scalars, which `reshape` in a configuration delivers as [rows], come out as [1, 1]: the shape in which they can be sent on.
    """
    rows = max(len(array) for array in inputs.values())
    for name in SHAPING:
        if name in inputs and (inputs[name] != inputs[name][0]).any():
            raise BadRequest(f"{name} differs between the rows of one request, so their results cannot be put together; send them apart")
    return [{name: array[i : i + 1].reshape(1, 1) if array.ndim == 1 else array[i : i + 1] for name, array in inputs.items()} for i in range(rows)]


def refuse_samples(inputs: Mapping[str, NDArray[Any]]) -> None:
    """More sequences than beams: TensorRT-LLM answers with a response for each, which the other engine has not and one response cannot hold.

    Raises:
        BadRequest: they are asked for.
    """
    sequences, beams = (max([1, *inputs[name].ravel().tolist()]) if name in inputs else 1 for name in ("num_return_sequences", "beam_width"))
    if sequences > beams:
        raise BadRequest(f"num_return_sequences is {sequences}, beam_width {beams}; send one request for each text, or ask for as many beams at least")


def merge(results: Sequence[Mapping[str, NDArray[Any]]]) -> Arrays:
    """Rows put together along the first dimension; shorter ones are filled up with -1, empty text or 0.0."""
    return {name: _stack([result[name] for result in results]) for name in results[0]}


def newest(log_probs: NDArray[Any], count: int) -> NDArray[Any]:
    """Log probabilities of the `count` tokens that a stream of one sequence has just brought, [count]: the last ones, since TensorRT-LLM repeats
    those of earlier responses (llmRequest.cpp, `createResult`) and the portable engine does not.
    """
    flat = log_probs.ravel()
    return flat[len(flat) - count :]


def _stack(arrays: Sequence[NDArray[Any]]) -> NDArray[Any]:
    if len(arrays) == 1:
        return arrays[0]
    if arrays[0].ndim == 1:
        return np.concatenate(arrays)
    shape = np.max([array.shape[1:] for array in arrays], axis=0)
    filler: Any = b"" if arrays[0].dtype == object else -1 if np.issubdtype(arrays[0].dtype, np.integer) else 0
    out = np.full((len(arrays), *shape), filler, arrays[0].dtype)
    for row, array in zip(out, arrays, strict=True):
        row[tuple(slice(0, size) for size in array.shape[1:])] = array[0]
    return out
