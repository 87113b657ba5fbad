"""`tensorrt_llm_bls`: turns text into an engine request, and ids into text.

Like the speech façade it uses only tensors of TensorRT-LLM's models. Conch's additions are optional inputs
(`accumulate_tokens`, `logit_bias_ids`, `logit_bias_weights`, `top_log_probs`) and the outputs of the last of
them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from ..arrays import scalar
from ..engine.stop_words import trimmed, words_in
from ..errors import BadRequest
from ..triton.rows import merge, refuse_beams, refuse_logits, refuse_samples, refuse_table, split
from . import likeliest
from .arrays import Arrays, Given, refuse
from .model import TextModel
from .pictures import INPUTS
from .processing import postprocess, preprocess
from .streaming import counts, gathered, growing

Engine = Callable[[Arrays, bool], Iterator[Arrays]]
# Pixels float16 [rows, n, 3, size, size] to the tensors of `multimodal_encoders`.
See = Callable[[NDArray[np.float16]], Arrays]
# `preprocessing`'s inputs by the façade's names (upstream's ensemble).
PREPROCESSED = {
    "text_input": "QUERY",
    "decoder_text_input": "DECODER_QUERY",
    "max_tokens": "REQUEST_OUTPUT_LEN",
    "bad_words": "BAD_WORDS_DICT",
    "stop_words": "STOP_WORDS_DICT",
    "embedding_bias_words": "EMBEDDING_BIAS_WORDS",
    "embedding_bias_weights": "EMBEDDING_BIAS_WEIGHTS",
    "end_id": "END_ID",
    "pad_id": "PAD_ID",
    "prompt_table_extra_id": "PROMPT_TABLE_EXTRA_ID",
    "video_bytes_input": "VIDEO_BYTES",
}
# `tensorrt_llm`'s inputs by `preprocessing`'s outputs, and by the façade's names.
ENGINE = {
    "INPUT_ID": "input_ids",
    "REQUEST_INPUT_LEN": "input_lengths",
    "DECODER_INPUT_ID": "decoder_input_ids",
    "REQUEST_DECODER_INPUT_LEN": "decoder_input_lengths",
    "REQUEST_OUTPUT_LEN": "request_output_len",
    "BAD_WORDS_IDS": "bad_words_list",
    "STOP_WORDS_IDS": "stop_words_list",
    "EMBEDDING_BIAS": "embedding_bias",
    "OUT_END_ID": "end_id",
    "OUT_PAD_ID": "pad_id",
}
FORWARDED = {
    "top_k": "runtime_top_k",
    "top_p": "runtime_top_p",
    "length_penalty": "len_penalty",
    "stream": "streaming",
    **{
        name: name
        for name in (
            "exclude_input_in_output",
            "temperature",
            "repetition_penalty",
            "min_tokens",
            "presence_penalty",
            "frequency_penalty",
            "seed",
            "return_log_probs",
            "return_context_logits",
            "return_generation_logits",
            "num_return_sequences",
            "beam_width",
            "prompt_embedding_table",
            "prompt_vocab_size",
            "lora_task_id",
            "lora_weights",
            "lora_config",
            "return_perf_metrics",
            "guided_decoding_guide_type",
            "guided_decoding_guide",
        )
    },
}
ENGINE_OUTPUTS = [
    "output_ids",
    "sequence_length",
    "cum_log_probs",
    "output_log_probs",
    "context_logits",
    "generation_logits",
]
DRAFT = ("num_draft_tokens", "use_draft_logits")


def complete(
    model: TextModel,
    inputs: Given,
    engine: Engine,
    see: See | None = None,
    stop: Callable[[], None] | None = None,
) -> Iterator[Arrays]:
    """Send all rows in one engine request and yield dictionaries of output arrays: one, or while streaming
    one for each engine response.

    A stream of one sequence yields what is new, or with `accumulate_tokens` the text so far; a stream of
    beams always yields the texts so far. `see` is the model that encodes pictures, if there is one; `stop`
    ends the engine's request: a whole text that has a stop word needs no more.

    Raises:
        BadRequest: what was sent cannot be served.
    """
    streaming, top = scalar(inputs, "stream", False), likeliest.wanted_top(inputs)
    request = engine_request(model, inputs, top, see)
    if streaming and len(request["input_ids"]) > 1:
        raise BadRequest(
            f"a stream takes one text, text_input has {len(request['input_ids'])}; send one request for each"
        )
    for result in _results(model, inputs, request, engine, stop, by_token=top is not None):
        yield (
            result
            if top is None or "output_ids" not in result
            else likeliest.with_tokens(
                model, result, request, top, with_logits=scalar(inputs, "return_generation_logits", False)
            )
        )


def engine_request(model: TextModel, inputs: Given, top: int | None, see: See | None = None) -> Arrays:
    """Make the engine's inputs [rows, …] under its own names.

    Raises:
        BadRequest: an input that the model or the engine cannot take.
    """
    refuse(inputs, [name for name in DRAFT if name in inputs and inputs[name].any()])
    refuse_samples(inputs)
    refuse_beams(inputs, model.beams)
    pictures, table, keys = _looked_at(model, inputs, see)
    words = {PREPROCESSED[name]: array for name, array in inputs.items() if name in PREPROCESSED} | keys
    given = preprocess(model, words, pictures)
    rows = len(given["INPUT_ID"])
    request = {ENGINE[name]: array for name, array in given.items() if name in ENGINE and array.size}
    request |= {
        FORWARDED[name]: array.reshape(rows, -1) if array.ndim < 2 else array
        for name, array in inputs.items()
        if name in FORWARDED
    }
    if given["OUT_PROMPT_TABLE_EXTRA_IDS"].size:
        table["prompt_table_extra_ids"] = given["OUT_PROMPT_TABLE_EXTRA_IDS"]
    request |= table
    refuse_table(request, model.facts)
    request |= _bias_by_id(model, inputs, request.get("embedding_bias"), rows)
    if model.facts.encodes:
        # An answer never holds what the encoder read, nor the decoder's start.
        request.pop("exclude_input_in_output", None)
    return request | ({} if top is None else likeliest.inputs_for(model, request, top, rows))


def _looked_at(model: TextModel, inputs: Given, see: See | None) -> tuple[int, Arrays, Arrays]:
    """Return how many pictures each text has, the engine's inputs for them, and their keys."""
    if model.picture is None or see is None:
        refuse(inputs, INPUTS)
        return 0, {}, {}
    from ..vision.questions import keys_of, pictures_of  # Pillow is nothing that texts need

    pixels = pictures_of(inputs, model.picture, model.pictures)
    if pixels is None:
        return 0, {}, {}
    if len(pixels) != len(inputs["text_input"]):
        raise BadRequest(f"{len(pixels)} rows of pictures came with {len(inputs['text_input'])} texts")
    if "prompt_embedding_table" in inputs and inputs["prompt_embedding_table"].size:
        raise BadRequest("prompt_embedding_table cannot be combined with pictures, which make one; omit one")
    seen = see(pixels)
    table = {
        "prompt_embedding_table": seen["OUT_PROMPT_EMBEDDING_TABLE"],
        "prompt_vocab_size": seen["OUT_PROMPT_VOCAB_SIZE"],
    }
    keys = keys_of(pixels, inputs.get("prompt_table_extra_id"))
    return pixels.shape[1], table, {"PROMPT_TABLE_EXTRA_ID": keys}


def stop_words(inputs: Given) -> list[bytes]:
    """Return the stop words of a request for one whole text. Such a text is streamed by the engine and ended
    where it has one of them: as ids, which the engine looks for, a word may be split in other ways.
    """
    several = scalar(inputs, "stream", False) or scalar(inputs, "beam_width", 1) > 1
    if several or "stop_words" not in inputs or len(inputs["stop_words"]) > 1:
        return []
    return [word for word in inputs["stop_words"].ravel().tolist() if word]


def _results(
    model: TextModel,
    inputs: Given,
    request: Arrays,
    engine: Engine,
    stop: Callable[[], None] | None,
    *,
    by_token: bool,
) -> Iterator[Arrays]:
    """Yield responses with their texts. `by_token`: each token's logits are wanted, which some engines return
    only in a stream: in one response they would cover every token that was allowed.
    """
    streaming, beams = scalar(inputs, "stream", False), scalar(inputs, "beam_width", 1)
    if beams == 1 and streaming:
        given = "accumulate_tokens" in inputs
        accumulate = scalar(inputs, "accumulate_tokens", False) if given else model.accumulate
        return growing(model, engine(request, True), request, accumulate=accumulate)
    logits = "return_generation_logits" in request
    words = stop_words(inputs) if stop and not logits and not _repeated(model, request).any() else []
    if words or (beams == 1 and by_token and logits and model.facts.full_logits):
        rows = [{**row, "streaming": np.array([[True]])} for row in split(request)]
        return iter([merge([gathered(model, engine(row, True), row, words, stop) for row in rows])])
    refuse_logits(request, model.facts.vocabulary)
    return _whole(model, engine(request, streaming), request)


def _whole(model: TextModel, results: Iterator[Arrays], request: Arrays) -> Iterator[Arrays]:
    """Yield responses that hold whole texts."""
    words = [words_in(own) for own in request["stop_words_list"]]
    for result in results:
        lengths = trimmed(result["output_ids"], result["sequence_length"], words)
        text = postprocess(model, result["output_ids"], lengths)
        written = (lengths - _repeated(model, request)).sum(1, keepdims=True)
        yield {**result, "sequence_length": lengths, "text_output": text} | counts(request, written)


def _repeated(model: TextModel, request: Arrays) -> NDArray[np.int32]:
    """Return how many ids at the start of each answer repeat the prompt, int32 [rows, 1]; a decoder-only
    model may repeat it.
    """
    lengths = request["input_lengths"].reshape(-1, 1)
    default = np.full(lengths.shape, model.excludes)
    excluded = request.get("exclude_input_in_output", default).reshape(-1, 1)
    return np.where(excluded | model.facts.encodes | scalar(request, "streaming", False), 0, lengths).astype(
        np.int32
    )


def _bias_by_id(model: TextModel, inputs: Given, words: NDArray[np.float32] | None, rows: int) -> Arrays:
    """Add the bias by token id to that by words: float32 [rows, vocabulary]."""
    ids, weights, vocabulary = (
        inputs.get("logit_bias_ids"),
        inputs.get("logit_bias_weights"),
        model.facts.vocabulary,
    )
    if ids is None or not ids.size:
        return {}
    if weights is None or weights.size != ids.size:
        raise BadRequest(
            f"logit_bias_ids has {ids.size} ids, logit_bias_weights "
            f"{0 if weights is None else weights.size} weights; send one for each"
        )
    if ((ids < 0) | (ids >= vocabulary)).any():
        raise BadRequest(f"logit_bias names a token outside 0 to {vocabulary - 1}")
    bias = np.zeros((rows, vocabulary), np.float32) if words is None else words
    for row, own, values in zip(bias, ids.reshape(rows, -1), weights.reshape(rows, -1), strict=True):
        np.add.at(row, own, values)
    return {"embedding_bias": bias}
