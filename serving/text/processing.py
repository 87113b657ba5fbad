"""`preprocessing` and `postprocessing`: convert strings to ids, and ids to strings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..engine.stop_words import trimmed, words_in
from ..errors import BadRequest
from .arrays import Arrays, Given, decoded, filled, lengths_of, objects, padded, refuse, strings
from .model import TextModel
from .pictures import with_pictures

LONGEST_TOKEN = 128  # characters of the longest token in the vocabularies of GPT-2, T5 and BART
LONGEST_WORDS = 1 << 18  # bytes of a request's bad or stop words
# What no text model takes: pictures, and the ids that stand for them.
PICTURES = ("IMAGE_BYTES", "IMAGE_URL", "VIDEO_BYTES", "PROMPT_TABLE_EXTRA_ID")


def preprocess(model: TextModel, inputs: Given, pictures: int = 0) -> Arrays:
    """Convert strings [rows, 1] to ids int32 [rows, longest] with lengths, word lists int32 [rows, 2, n] and
    embedding bias. `pictures` counts those of each text, whose ids include their rows of the prompt-embedding
    table.

    Raises:
        BadRequest: a text that is too long for the model, or an input that the model does not take.
    """
    refuse(inputs, PICTURES if model.prompt is None else ("VIDEO_BYTES",))
    rows = [_read(model, text, pictures) for text in strings(inputs, "QUERY")]
    starts = [_started(model, text) for text in strings(inputs, "DECODER_QUERY") or [""] * len(rows)]
    longest = inputs["REQUEST_OUTPUT_LEN"].reshape(-1, 1)
    for row, start, tokens in zip(rows, starts, longest.ravel().tolist(), strict=True):
        _check_fits(model, row, start, tokens)
    # As TensorRT-LLM does (GenericLlmRequest::validate): what does not fit after the prompt is not asked
    # for.
    before = starts if model.facts.encodes else rows
    room = np.array([[model.facts.positions - len(ids)] for ids in before], np.int32)
    return {
        "INPUT_ID": padded(rows, model.facts.pad_id),
        "REQUEST_INPUT_LEN": lengths_of(rows),
        "DECODER_INPUT_ID": padded(starts, model.facts.pad_id),
        "REQUEST_DECODER_INPUT_LEN": lengths_of(starts),
        "BAD_WORDS_IDS": _word_lists(model, inputs, "BAD_WORDS_DICT", len(rows)),
        "STOP_WORDS_IDS": _word_lists(model, inputs, "STOP_WORDS_DICT", len(rows)),
        "EMBEDDING_BIAS": _bias(model, inputs, len(rows)),
        "REQUEST_OUTPUT_LEN": np.minimum(longest, room).astype(np.int32),
        "OUT_END_ID": filled(inputs, "END_ID", model.facts.end_id, len(rows)),
        "OUT_PAD_ID": filled(inputs, "PAD_ID", model.facts.pad_id, len(rows)),
        "OUT_PROMPT_TABLE_EXTRA_IDS": _extra_ids(model, inputs, rows),
    }


def _extra_ids(model: TextModel, inputs: Given, rows: Sequence[Sequence[int]]) -> NDArray[np.uint64]:
    """Return uint64 [rows, longest]: the picture's own id where a row of its table stands, 0 where a word
    does; [rows, 0] without such ids. The input has one id for all pictures of a text or, from Conch's façade,
    one for each.
    """
    given = inputs.get("PROMPT_TABLE_EXTRA_ID")
    if given is None or not given.size:
        return np.zeros((len(rows), 0), np.uint64)
    ids = padded(rows, 0)
    own, row = given.reshape(len(rows), -1).astype(np.uint64), ids - model.facts.vocabulary
    each = model.prompt.rows if model.prompt and own.shape[1] > 1 else max(ids.shape[1], 1)
    found = np.take_along_axis(own, np.maximum(row, 0) // each, 1)
    return np.where(row >= 0, found, np.uint64(0)).astype(np.uint64)


def postprocess(
    model: TextModel,
    tokens: NDArray[np.int32],
    lengths: NDArray[np.int32],
    stop_words: NDArray[np.int32] | None = None,
) -> NDArray[Any]:
    """Convert ids [rows, beams, longest] and lengths [rows, beams] to texts, bytes in a flat object array
    [rows x beams], as upstream's postprocessing does and its clients expect.

    `stop_words` int32 [rows, 2, n] end a text of their row.

    Raises:
        BadRequest: ids and lengths do not fit each other, or are negative.
    """
    if (
        lengths.shape != tokens.shape[:2]
        or (lengths < 0).any()
        or (tokens[np.arange(tokens.shape[2]) < lengths[..., None]] < 0).any()
    ):
        raise BadRequest(
            f"TOKENS_BATCH {list(tokens.shape)} and SEQUENCE_LENGTH {list(lengths.shape)} do not match, or "
            "have negative values; send what tensorrt_llm returned"
        )
    if stop_words is not None:
        lengths = trimmed(tokens, lengths, [words_in(own) for own in stop_words])
    texts = [
        [model.text(ids[:count]) for ids, count in zip(row, own, strict=True)]
        for row, own in zip(tokens, lengths, strict=True)
    ]
    return objects([text for row in texts for text in row])


def _read(model: TextModel, text: str, pictures: int = 0) -> list[int]:
    """Tokenize a text; GPT-2 starts an empty text with its end-of-text token.

    Raises:
        BadRequest: certainly too long; tokenizing it would hold up everybody else.
    """
    if len(text) > LONGEST_TOKEN * model.facts.reads:
        raise BadRequest(
            f"the text has {len(text)} characters, this model reads {model.facts.reads} tokens; shorten it"
        )
    if model.prompt is not None:
        return with_pictures(model.tokenizer, model.prompt, text, pictures, model.facts.vocabulary)
    read = model.tokenizer.ids if model.facts.encodes else model.tokenizer.prompt
    return read(text) or [model.facts.end_id]


def _started(model: TextModel, text: str) -> list[int]:
    """Return the decoder's first ids followed by a prompt's; a decoder-only model has none."""
    positions = model.facts.positions
    if len(text) > LONGEST_TOKEN * positions:
        raise BadRequest(
            f"the decoder's prompt has {len(text)} characters, this model has {positions} positions; "
            "shorten it"
        )
    return model.start + (model.tokenizer.ids(text, special=False) if text and model.facts.encodes else [])


def _check_fits(model: TextModel, row: Sequence[int], start: Sequence[int], tokens: int) -> None:
    positions = model.facts.positions
    if model.facts.encodes and len(row) > model.facts.reads:
        raise BadRequest(
            f"the text has {len(row)} tokens, this model reads at most {model.facts.reads}; shorten it"
        )
    before, name = (start, "the decoder's prompt") if model.facts.encodes else (row, "the text")
    if len(before) >= positions:
        raise BadRequest(f"{name} has {len(before)} tokens, this model has {positions} positions; shorten it")
    if tokens < 1:
        raise BadRequest(f"max_tokens is {tokens}; it must be at least 1")


def _word_lists(model: TextModel, inputs: Given, name: str, rows: int) -> NDArray[np.int32]:
    """Return int32 [rows, 2, n]."""
    words = inputs[name].reshape(rows, -1).tolist() if name in inputs else [[]] * rows
    if (size := sum(len(word) for row in words for word in row)) > LONGEST_WORDS:
        raise BadRequest(f"{name} has {size} bytes; send {LONGEST_WORDS} at most")
    lists = [model.tokenizer.word_list([decoded(word, name) for word in row]) for row in words]
    longest = max(one.shape[1] for one in lists)
    return np.stack([np.pad(one, [(0, 0), (0, longest - one.shape[1])], constant_values=-1) for one in lists])


def _bias(model: TextModel, inputs: Given, rows: int) -> NDArray[np.float32]:
    """Return float32 [rows, vocabulary], each word's weight on all its ids; [rows, 0] without words."""
    words, weights = inputs.get("EMBEDDING_BIAS_WORDS"), inputs.get("EMBEDDING_BIAS_WEIGHTS")
    if words is None or not words.size or not any(words.ravel().tolist()):
        return np.zeros((rows, 0), np.float32)
    if weights is None or weights.size != words.size:
        raise BadRequest(
            f"embedding_bias_words has {words.size} words, embedding_bias_weights "
            f"{0 if weights is None else weights.size}; send one for each"
        )
    bias = np.zeros((rows, model.facts.vocabulary), np.float32)
    for row, names, own in zip(bias, words.reshape(rows, -1), weights.reshape(rows, -1), strict=True):
        for word, weight in zip(names, own, strict=True):
            row[model.tokenizer.ids(decoded(word, "EMBEDDING_BIAS_WORDS"), special=False)] += weight
    return bias
