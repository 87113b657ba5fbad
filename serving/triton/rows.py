"""Split requests with several rows, and merge their results."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conch.bundle import EngineFacts

from ..arrays import finite
from ..errors import BadRequest

# What decides which results there are, and their shapes.
SHAPING = (
    "beam_width",
    "num_return_sequences",
    "return_log_probs",
    "return_generation_logits",
    "return_step_attention",
)
# Padded inputs by the input that says how long each row is. TensorRT-LLM looks at these lengths only where a
# request has several rows, and at the decoder's never (tensorrtllm_backend r25.05, utils.cc,
# `splitBatchInputsTensors`), so the caller of a single row cuts it.
LENGTHS = {
    "input_ids": "input_lengths",
    "encoder_input_features": "input_lengths",
    "decoder_input_ids": "decoder_input_lengths",
    "prompt_table_extra_ids": "input_lengths",
}
MOST_LOGITS = (
    64 << 20
)  # bytes of logits in one response; it goes through the shared memory of two Python stubs (TRITON_SHM)
Arrays = dict[str, NDArray[Any]]


def split(inputs: Mapping[str, NDArray[Any]]) -> list[Arrays]:
    """Return one dictionary per row. Every array keeps a leading dimension of 1, and ids and features lose
    their padding (`LENGTHS`).

    Scalars, which `reshape` in a configuration delivers as [rows], become [1, 1], the shape in which they can
    be forwarded.

    Raises:
        BadRequest: rows whose results cannot be joined, or a length that its row does not have.
    """
    rows = max(len(array) for array in inputs.values())
    for name in SHAPING:
        if name in inputs and (inputs[name] != inputs[name][0]).any():
            raise BadRequest(
                f"{name} differs between the rows of one request, so their results cannot be joined; "
                "send separate requests"
            )
    return [
        _cut(
            {
                name: array[i : i + 1].reshape(1, 1) if array.ndim == 1 else array[i : i + 1]
                for name, array in inputs.items()
            }
        )
        for i in range(rows)
    ]


def _cut(row: Arrays) -> Arrays:
    if "prompt_table_extra_ids" in row and not row["prompt_table_extra_ids"].size:
        del row["prompt_table_extra_ids"]  # preprocessing's way to say that there are none
    for name, lengths in LENGTHS.items():
        if name in row and lengths in row and row[name].ndim > 1:
            length, size = int(row[lengths].ravel()[0]), row[name].shape[1]
            if not 0 <= length <= size:
                raise BadRequest(f"{lengths} is {length}; it must be 0 to {size}, the size of {name}")
            row[name] = row[name][:, :length]
    return row


def greedy_at_zero(inputs: Mapping[str, NDArray[Any]]) -> Arrays:
    """Replace temperature 0 with top_k 1. TensorRT-LLM turns temperature 0 into 1, and is greedy only if
    top_k is given, too; with top_p alone it samples (runtime/samplingConfig.h, `validate`).
    """
    zero = inputs["temperature"] == 0.0 if "temperature" in inputs else np.zeros(0, bool)
    if not zero.any():
        return dict(inputs)
    if zero.all():
        kept = {name: array for name, array in inputs.items() if name not in ("temperature", "runtime_top_p")}
        return {**kept, "runtime_top_k": np.ones(zero.shape, np.int32)}
    top_k = inputs.get("runtime_top_k", np.zeros(zero.shape, np.int32))
    settled = {
        "temperature": np.where(zero, 1, inputs["temperature"]).astype(np.float32),
        "runtime_top_k": np.where(zero, 1, top_k).astype(np.int32),
    }
    return {**inputs, **settled}


def started(row: Arrays, start: Sequence[int]) -> Arrays:
    """Add the decoder's first ids `start` to a row that has none. TensorRT-LLM would start with the padding
    id, which is wrong for BART, and refuses the request where there is none.
    """
    if not start or "decoder_input_ids" in row:
        return row
    return {
        **row,
        "decoder_input_ids": np.array([start], np.int32),
        "decoder_input_lengths": np.array([[len(start)]], np.int32),
    }


def refuse_logits(inputs: Mapping[str, NDArray[Any]], vocabulary: int) -> None:
    """Refuse logits that would exhaust the stubs' shared memory: without streaming TensorRT-LLM returns them
    for every token that was allowed, [beams, max tokens, vocabulary] in float32 (llmRequest.h,
    `allocGenerationLogitsHost`).

    Raises:
        BadRequest: they are more than MOST_LOGITS bytes.
    """
    if not ("return_generation_logits" in inputs and inputs["return_generation_logits"].any()):
        return
    beams = max([1, *inputs["beam_width"].ravel().tolist()]) if "beam_width" in inputs else 1
    tokens = int(inputs["request_output_len"].sum())
    if (size := 4 * beams * tokens * vocabulary) > MOST_LOGITS:
        most = MOST_LOGITS // (4 * beams * vocabulary)
        raise BadRequest(
            f"return_generation_logits for {tokens} tokens, {beams} beams and {vocabulary} words is "
            f"{size >> 20} MiB; ask for {most} tokens at most, or stream"
        )


def refuse_misread(inputs: Mapping[str, NDArray[Any]], names: Sequence[str]) -> None:
    """Refuse inputs that the engine accepts and reads incorrectly (build/targets/trtllm/facts.py, MISREAD).

    Raises:
        BadRequest: one is there.
    """
    for name in names:
        if name in inputs and inputs[name].size:
            raise BadRequest(
                f"{name} is not supported by this release of TensorRT-LLM, which misreads it; omit it, or "
                "use TARGET=openvino"
            )


def refuse_beams(inputs: Mapping[str, NDArray[Any]], most: int | None) -> None:
    """Refuse more beams than are served. TensorRT-LLM would notice only at the front of its queue, and fail
    the whole batch.

    Raises:
        BadRequest: `most` is known and less than what is asked for.
    """
    beams = max([1, *inputs["beam_width"].ravel().tolist()]) if "beam_width" in inputs else 1
    if most is not None and beams > most:
        raise BadRequest(
            f"beam_width is {beams}, this deployment serves {most}; ask for less, or raise served_beam_width "
            "in catalog.toml"
        )


def refuse_table(inputs: Mapping[str, NDArray[Any]], facts: EngineFacts) -> None:
    """Refuse prompt tables that TensorRT-LLM would reject only after it has started, failing every running
    request (batch_manager/promptTuningBuffers.cpp, `validate`; executorImpl.cpp, `forwardAsync`), and ids
    past the table's rows, which would read another request's rows (its slots are adjacent). Where `facts` has
    no `prompt_rows`, the engine checks this itself.

    Raises:
        BadRequest: too many rows, of another width, not finite, or such ids.
    """
    if not facts.prompt_rows:
        return
    table, rows = inputs.get("prompt_embedding_table"), 0
    if table is not None and table.size:
        rows, width = table.shape[-2:]
        if rows > facts.prompt_rows or width != facts.prompt_width:
            raise BadRequest(
                f"prompt_embedding_table is {[rows, width]}; this engine takes [rows, {facts.prompt_width}], "
                f"{facts.prompt_rows} rows at most"
            )
        if not finite(table):
            raise BadRequest("prompt_embedding_table has NaN or infinite values; send finite ones")
    ids = inputs.get("input_ids")
    if ids is not None and ids.size and ids.max() >= facts.vocabulary + rows:
        raise BadRequest(
            f"input_ids has {ids.max()}; this model has {facts.vocabulary} words, and the request {rows} "
            "rows of a prompt table"
        )


def refuse_samples(inputs: Mapping[str, NDArray[Any]]) -> None:
    """Refuse num_return_sequences > beam_width: TensorRT-LLM would send one response per sequence, which a
    unary response cannot carry.

    Raises:
        BadRequest: they are asked for.
    """
    sequences, beams = (
        max([1, *inputs[name].ravel().tolist()]) if name in inputs else 1
        for name in ("num_return_sequences", "beam_width")
    )
    if sequences > beams:
        raise BadRequest(
            f"num_return_sequences is {sequences}, beam_width {beams}; send one request for each text, or "
            "ask for at least as many beams"
        )


def merge(results: Sequence[Mapping[str, NDArray[Any]]]) -> Arrays:
    """Merge rows along the first dimension; shorter ones are padded with -1, empty text or 0.0."""
    return {name: _stack([result[name] for result in results]) for name in results[0]}


def newest(log_probs: NDArray[Any], count: int) -> NDArray[Any]:
    """Return the log probabilities of the `count` tokens that a one-sequence stream has just delivered,
    [count]: the last ones, since TensorRT-LLM repeats those of earlier responses (llmRequest.cpp,
    `createResult`) and the portable engine does not.
    """
    flat = log_probs.ravel()
    return flat[len(flat) - count :]


def grown(stream: Iterator[Arrays]) -> Iterator[Arrays]:
    """Accumulate the responses of a one-sequence stream that carry only what is new."""
    ids, log_probs = np.zeros(0, np.int32), np.zeros(0, np.float32)
    for result in stream:
        count = int(result["sequence_length"].ravel()[0])
        ids = np.concatenate([ids, result["output_ids"].ravel()[:count]])
        log_probs = np.concatenate([log_probs, newest(result["output_log_probs"], count)])
        lengths = np.array([[len(ids)]], np.int32)
        yield {
            **result,
            "output_ids": ids[None, None],
            "output_log_probs": log_probs[None, None],
            "sequence_length": lengths,
        }


def _stack(arrays: Sequence[NDArray[Any]]) -> NDArray[Any]:
    if len(arrays) == 1:
        return arrays[0]
    if arrays[0].ndim == 1:
        return np.concatenate(arrays)
    shape = np.max([array.shape[1:] for array in arrays], axis=0)
    filler: Any = (
        b"" if arrays[0].dtype == object else -1 if np.issubdtype(arrays[0].dtype, np.integer) else 0
    )
    out = np.full((len(arrays), *shape), filler, arrays[0].dtype)
    for row, array in zip(out, arrays, strict=True):
        row[tuple(slice(0, size) for size in array.shape[1:])] = array[0]
    return out
