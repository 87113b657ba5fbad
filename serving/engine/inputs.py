"""Turn inputs of the engine model into jobs of the scheduler.

Names, dtypes and shapes are those of `tensorrt_llm` in TensorRT-LLM 0.20.0, one sequence per call: every
array has a leading 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conch.bundle import EngineFacts

from ..arrays import T, finite, scalar, text_of
from ..audio.log_mel import HOP
from ..errors import BadRequest
from .guidance import Guide, Guides
from .jobs import Job, Listener
from .sampling import Sampling, TimestampRules
from .stop_words import words_in

Arrays = Mapping[str, NDArray[Any]]
# What this engine has no answer to. Sending one is an error: a silently ignored input is a wrong result.
UNSUPPORTED = (
    "draft_input_ids",
    "draft_logits",
    "draft_acceptance_threshold",
    "runtime_top_p_min",
    "runtime_top_p_decay",
    "runtime_top_p_reset_ids",
    "cross_attention_mask",
    "mrope_rotary_cos_sin",
    "mrope_position_deltas",
    "lora_task_id",
    "lora_weights",
    "lora_config",
    "context_phase_params",
    "skip_cross_attn_blocks",
    "retention_token_range_starts",
    "retention_token_range_ends",
    "retention_token_range_priorities",
    "retention_token_range_durations_ms",
    "retention_decode_priority",
    "retention_decode_duration_ms",
    "lookahead_window_size",
    "lookahead_ngram_size",
    "lookahead_verification_set_size",
)
PROMPT_TABLE = ("prompt_embedding_table", "prompt_table_extra_ids", "prompt_vocab_size")
UNSUPPORTED_IF_TRUE = ("return_context_logits", "return_perf_metrics")
LARGEST_BIAS = 1e9
MOST_WORDS = 4096  # each is compared after every token, while all other requests wait
COLDEST = 1e-3  # below it, dividing logits overflows float32; the likeliest token is all that is left


def _words(inputs: Arrays, name: str) -> tuple[tuple[int, ...], ...]:
    """Read a [2, n] word list: all ids, and the end of each word, padded with -1 (TensorRT-LLM,
    to_word_list_format).
    """
    if name not in inputs or not inputs[name].size:
        return ()
    word_list = inputs[name].reshape(-1, inputs[name].shape[-1])[-2:]
    ids, offsets = word_list
    ends = offsets[offsets > 0].tolist()
    if len(ends) > MOST_WORDS:
        raise BadRequest(f"{name} has {len(ends)} words; send {MOST_WORDS} at most")
    if any(a >= b for a, b in pairwise(ends)) or (ends and ends[-1] > len(ids)):
        raise BadRequest(
            f"{name}: the second row must hold the words' ends, rising, {len(ids)} at most, and -1 after them"
        )
    return words_in(word_list)


def _refuse(inputs: Arrays, facts: EngineFacts) -> None:
    for name in (*UNSUPPORTED, *(() if facts.prompt_width else PROMPT_TABLE)):
        if name in inputs and inputs[name].size:
            raise BadRequest(f"{name} is not supported by this engine; omit it or use TARGET=trtllm")
    for name in UNSUPPORTED_IF_TRUE:
        if scalar(inputs, name, False):
            raise BadRequest(f"{name}=true is not supported by this engine; omit it or use TARGET=trtllm")
    if scalar(inputs, "beam_search_diversity_rate", 0.0):
        raise BadRequest("beam_search_diversity_rate is not supported by this engine; leave it at 0")


def _sampling(inputs: Arrays, facts: EngineFacts) -> Sampling:
    end_id, vocabulary = facts.end_id, facts.vocabulary
    bias = (
        inputs["embedding_bias"].ravel().astype(np.float32)
        if "embedding_bias" in inputs and inputs["embedding_bias"].size
        else None
    )
    if bias is not None and len(bias) != vocabulary:
        raise BadRequest(
            f"embedding_bias has {len(bias)} values, the vocabulary {vocabulary}; send one value per token"
        )
    if bias is not None and not (np.abs(bias) <= LARGEST_BIAS).all():
        raise BadRequest(
            f"embedding_bias has values that are NaN or beyond {LARGEST_BIAS:g}; send finite ones"
        )
    temperature = _within(inputs, "temperature", 1.0, 0.0, 100.0)
    end = _within(inputs, "end_id", end_id, -1, vocabulary - 1)
    return Sampling(
        max_tokens=scalar(inputs, "request_output_len", 0),
        end_id=end,
        other_ends=facts.other_ends if end == end_id else (),  # a caller's own end is the only one
        beam_width=scalar(inputs, "beam_width", 1),
        temperature=temperature if temperature >= COLDEST else 0.0,
        top_k=_within(inputs, "runtime_top_k", 0, 0, vocabulary),
        top_p=_within(inputs, "runtime_top_p", 0.0, 0.0, 1.0),
        seed=scalar(inputs, "seed", 0),
        repetition_penalty=_within(inputs, "repetition_penalty", 1.0, 0.01, 100.0),
        presence_penalty=_within(inputs, "presence_penalty", 0.0, -100.0, 100.0),
        frequency_penalty=_within(inputs, "frequency_penalty", 0.0, -100.0, 100.0),
        min_tokens=_within(inputs, "min_tokens", 0, 0, 1 << 20),
        length_penalty=_within(inputs, "len_penalty", 1.0, -10.0, 10.0),
        early_stopping=scalar(inputs, "early_stopping", False),
        bias=bias,
        bad_words=_known(_words(inputs, "bad_words_list"), "bad_words_list", vocabulary),
        stop_words=_known(_words(inputs, "stop_words_list"), "stop_words_list", vocabulary),
        keep_logits=scalar(inputs, "return_generation_logits", False),
        timestamps=_timestamps(inputs, end_id, vocabulary),
    )


def _guide(inputs: Arrays, guides: Guides | None) -> Guide | None:
    """Return the grammar that the text must follow, if the request has one."""
    kind, guide = (text_of(inputs, f"guided_decoding_guide{suffix}") for suffix in ("_type", ""))
    if not kind and not guide:
        return None
    if guides is None:
        raise BadRequest("guided_decoding_guide is not supported by this engine; omit it")
    return guides.guide(kind, guide)


def _timestamps(inputs: Arrays, end_id: int, vocabulary: int) -> TimestampRules | None:
    """Return Whisper's timestamp rules, if the request has the id of the first timestamp."""
    first = _within(inputs, "first_timestamp", 0, 0, vocabulary - 1)
    if first and first <= end_id:
        raise BadRequest(f"first_timestamp is {first}; timestamps come after the end id {end_id}")
    return TimestampRules(first, end_id) if first else None


def _within(inputs: Arrays, name: str, default: T, low: T, high: T) -> T:
    """Return a scalar inside its range; NaN is outside every range."""
    value = scalar(inputs, name, default)
    if not low <= value <= high:
        raise BadRequest(f"{name} is {value}; it must be from {low} to {high}")
    return value


def _known(words: tuple[tuple[int, ...], ...], name: str, vocabulary: int) -> tuple[tuple[int, ...], ...]:
    if any(not 0 <= token < vocabulary for word in words for token in word):
        raise BadRequest(f"{name} has ids outside 0 to {vocabulary - 1}")
    return words


def _features(inputs: Arrays, mels: int, longest: int) -> NDArray[Any]:
    """Return encoder features, float16 [frames, mels], cut to input_lengths."""
    features: NDArray[Any] = inputs["encoder_input_features"][0]
    frames = _within(inputs, "input_lengths", len(features), 2, len(features))
    if features.shape[-1] != mels or frames > longest or frames % 2:
        raise BadRequest(
            f"encoder_input_features is {list(features.shape)} with {frames} frames; this model takes [even "
            f"frames up to {longest}, {mels}]"
        )
    features = features[:frames]
    if not finite(features):
        raise BadRequest("encoder_input_features has NaN or infinite values; send finite ones")
    return features


def _samples(inputs: Arrays, facts: EngineFacts) -> NDArray[np.float32]:
    """Return samples at 16 kHz, float32 [160 * input_lengths], padded with silence."""
    if not facts.takes_samples:
        raise BadRequest("audio_samples is not supported by this engine; send encoder_input_features")
    samples = inputs["audio_samples"].ravel()
    frames = _within(inputs, "input_lengths", 0, 2, facts.frames)
    if frames % 2 or not 0 < len(samples) <= frames * HOP:
        raise BadRequest(
            f"audio_samples has {len(samples)} samples for {frames} frames; send an even number of frames as "
            f"input_lengths, and {HOP} samples at most for each"
        )
    if not finite(samples):
        raise BadRequest("audio_samples has NaN or infinite values; send finite ones")
    missing = frames * HOP - len(samples)
    return np.pad(samples, (0, missing)) if missing else samples


def _source(inputs: Arrays, facts: EngineFacts) -> tuple[bool, NDArray[Any] | None]:
    """Return the encoder's input if there is an encoder; see Runtime.prepare."""
    if not facts.encodes:
        return False, None
    if facts.mels:
        if "audio_samples" in inputs:
            return True, _samples(inputs, facts)
        if "encoder_input_features" not in inputs:
            raise BadRequest("encoder_input_features is missing; send float16 [frames, mels]")
        return True, _features(inputs, facts.mels, facts.frames)
    ids = np.array(_ids(inputs, "input_ids", "input_lengths", facts.vocabulary), np.int64)
    if not 1 <= len(ids) <= facts.reads:
        raise BadRequest(f"input_ids has {len(ids)} ids; it must have 1 to {facts.reads}; shorten the input")
    return True, ids


def _table(inputs: Arrays, facts: EngineFacts) -> NDArray[Any] | None:
    """Return the rows for ids from the vocabulary's end on, [n, prompt_width]."""
    if "prompt_embedding_table" not in inputs or not inputs["prompt_embedding_table"].size:
        if "prompt_vocab_size" in inputs and scalar(inputs, "prompt_vocab_size", 0):
            raise BadRequest("prompt_vocab_size requires prompt_embedding_table; send both or neither")
        return None
    table: NDArray[Any] = inputs["prompt_embedding_table"][0]
    if table.ndim != 2 or table.shape[1] != facts.prompt_width:
        raise BadRequest(
            f"prompt_embedding_table is {list(table.shape)}; this model takes [rows, {facts.prompt_width}]"
        )
    if len(table) > facts.positions:
        raise BadRequest(
            f"prompt_embedding_table has {len(table)} rows, this model {facts.positions} positions; send "
            "fewer"
        )
    rows = _within(inputs, "prompt_vocab_size", len(table), 1, len(table))
    if not finite(table):
        raise BadRequest("prompt_embedding_table has NaN or infinite values; send finite ones")
    return table[:rows]


def _check_extra_ids(inputs: Arrays, ids: tuple[int, ...]) -> None:
    """Check `prompt_table_extra_ids`, which tell TensorRT-LLM which cached blocks requests may share. These
    engines share none of prompts with a table, so any values will do, one for each id.
    """
    extra = inputs.get("prompt_table_extra_ids")
    if extra is not None and extra.size not in (0, len(ids)):
        raise BadRequest(
            f"prompt_table_extra_ids has {extra.size} values, input_ids {len(ids)}; send one for each"
        )


def _prompt(inputs: Arrays, facts: EngineFacts, rows: int) -> tuple[int, ...]:
    """Return the decoder's first ids. `rows` counts rows of the prompt table."""
    if not facts.encodes:
        ids = _ids(inputs, "input_ids", "input_lengths", facts.vocabulary + rows)
        _check_extra_ids(inputs, ids)
        return ids
    if "decoder_input_ids" not in inputs and facts.decoder_start:
        return facts.decoder_start
    return _ids(inputs, "decoder_input_ids", "decoder_input_lengths", facts.vocabulary)


def _ids(inputs: Arrays, name: str, lengths: str, vocabulary: int) -> tuple[int, ...]:
    if name not in inputs:
        raise BadRequest(f"{name} is missing; send the ids to start from")
    length = _within(inputs, lengths, inputs[name].size, 0, inputs[name].size)
    ids = tuple(int(i) for i in inputs[name].ravel()[:length])
    if any(not 0 <= i < vocabulary for i in ids):
        raise BadRequest(f"{name} has ids outside 0 to {vocabulary - 1}")
    return ids


def stops(inputs: Arrays, request_id: str) -> bool:
    """Tell whether this request cancels the one with the same id (TensorRT-LLM's `stop`).

    Raises:
        BadRequest: no id.
    """
    if not scalar(inputs, "stop", False):
        return False
    if not request_id:
        raise BadRequest("stop=true requires the id of the request to cancel; send it as this request's id")
    return True


def _sequences(inputs: Arrays, beams: int) -> int:
    """Return how many of the beams the request asks for."""
    sequences = _within(inputs, "num_return_sequences", 0, 0, 1 << 20)
    if sequences > beams:
        raise BadRequest(
            f"num_return_sequences is {sequences}, beam_width {beams}; raise beam_width to at least the same"
        )
    return sequences or beams


def parse(
    inputs: Arrays,
    listener: Listener,
    facts: EngineFacts,
    request_id: str = "",
    *,
    exclude_prompt: bool = False,
    guides: Guides | None = None,
) -> Job:
    """Make a job from one request's arrays (each with a leading dimension of 1). `exclude_prompt` is the
    default for decoder-only models whose request does not say whether to repeat the prompt. `guides` has the
    engine's tokenizer.

    Raises:
        BadRequest: an input is missing, malformed or not supported.
    """
    _refuse(inputs, facts)
    if any(len(array) > 1 for array in inputs.values()):
        raise BadRequest(
            "tensorrt_llm_stream returns one sequence; send one request for each, or use tensorrt_llm"
        )
    guide = _guide(inputs, guides)
    encoder, source = _source(inputs, facts)
    table = _table(inputs, facts)
    prompt = _prompt(inputs, facts, 0 if table is None else len(table))
    sampling = _sampling(inputs, facts)
    # As TensorRT-LLM does (GenericLlmRequest::validate): what does not fit after the prompt is not asked
    # for.
    sampling = replace(sampling, max_tokens=min(sampling.max_tokens, max(facts.positions - len(prompt), 0)))
    sequences = _sequences(inputs, sampling.beam_width)
    streaming, attend = (scalar(inputs, name, False) for name in ("streaming", "return_step_attention"))
    if guide and sampling.beam_width > 1:
        raise BadRequest(f"guided_decoding_guide cannot be combined with beam_width={sampling.beam_width}")
    job = Job(prompt, sampling, listener, source, streaming, request_id, attend, table=table, guide=guide)
    job.log_probs, job.sequences = scalar(inputs, "return_log_probs", False), sequences
    job.exclude_prompt = encoder or streaming or scalar(inputs, "exclude_input_in_output", exclude_prompt)
    return job
