"""Triton's tensors to requests of TensorRT-LLM's executor, as `inflight_batcher_llm/src/utils.cc` of
tensorrtllm_backend r25.05 does it.

What that file does not look at is not looked at here: `decoder_input_lengths` never, `input_lengths` only
where a request has several rows.
"""

from dataclasses import dataclass

import numpy as np

STRIPPED = (
    "input_ids",
    "encoder_input_features",
)  # splitBatchInputsTensors: the only tensors that lose their padding
TAKEN_OUT = ("stop", "streaming")  # readInputsTensors reads these two apart
UNDEFINED = ("early_stopping",)  # a one-byte tensor of which four bytes are read
NOT_PLAYED = (
    "draft_input_ids",
    "lora_task_id",
    "lookahead_window_size",
    "guided_decoding_guide_type",
    "context_phase_params",
)


class TllmError(Exception):
    """What TLLM_THROW makes: a tag, the message, a place, and a backtrace."""

    def __init__(self, message, place):
        super().__init__(
            f"[TensorRT-LLM][ERROR] {message} "
            f"(/home/jenkins/agent/workspace/LLM/main/L0_PostMerge/tensorrt_llm/cpp/{place})\n"
            "1       0x7f1f3c0a53e8 "
            "/opt/tritonserver/backends/tensorrtllm/libtriton_tensorrtllm.so(+0x1c3e8)\n2       "
            "0x7f1f8b2ca0dc clone + 44"
        )


def check(true, message, place):
    """TLLM_CHECK_WITH_INFO."""
    if not true:
        raise TllmError(f"Assertion failed: {message}", place)


@dataclass(frozen=True)
class Sampling:
    """executor::SamplingConfig; None is an optional without a value."""

    beam_width: int = 1
    top_k: int | None = None
    top_p: float | None = None
    temperature: float | None = None
    min_tokens: int = 0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    length_penalty: float = 0.0  # layers::DefaultDecodingParams
    diversity_rate: float = 0.0
    seed: int = 0
    num_return_sequences: int | None = None


@dataclass(frozen=True)
class Request:
    """executor::Request."""

    tokens: tuple[int, ...]
    max_new_tokens: int
    streaming: bool
    sampling: Sampling
    exclude_input: bool
    end_id: int | None = None
    encoder_tokens: tuple[int, ...] = ()
    features: np.ndarray | None = None
    bad_words: tuple[tuple[int, ...], ...] = ()
    stop_words: tuple[tuple[int, ...], ...] = ()
    bias: np.ndarray | None = None
    log_probs: bool = False
    generation_logits: bool = False
    context_logits: bool = False
    table: np.ndarray | None = None
    extra_ids: tuple[int, ...] | None = None


def split(inputs):
    """splitBatchInputsTensors: one dictionary for each row; a single row keeps its padding."""
    if "input_ids" in inputs:
        check(
            inputs["input_ids"].ndim == 2, "Expected inputTokens tensors to have 2 dimensions", "utils.cc:169"
        )
        rows = len(inputs["input_ids"])
    elif "encoder_input_features" in inputs:
        rows = len(inputs["encoder_input_features"])
    else:
        raise TllmError("inputTokens or encoderInputFeatures tensor not provided", "utils.cc:180")
    if rows == 1:
        return [inputs]
    lengths = inputs["input_lengths"].ravel()
    return [
        {
            name: tensor[i : i + 1, : lengths[i]] if name in STRIPPED else tensor[i : i + 1]
            for name, tensor in inputs.items()
        }
        for i in range(rows)
    ]


def scalar(inputs, name, default=None):
    """extractSingleton."""
    if name not in inputs:
        return default
    check(inputs[name].size == 1, f"Invalid size for tensor {name}", "utils.h:248")
    return inputs[name].ravel()[0].item()


def vector(inputs, name):
    """extractVector: everything that is in the tensor."""
    return tuple(int(value) for value in inputs[name].ravel()) if name in inputs else None


def word_list(flat):
    """convertWordList: the first half are ids, the second half where each word ends."""
    if flat is None:
        return ()
    shown, half, words, at = "".join(f"{value} " for value in flat), len(flat) // 2, [], 0
    check(len(flat) % 2 == 0, f"Sparse list must not have odd length: {shown}", "utils.cc:409")
    for i in range(half, len(flat)):
        if flat[i] == -1:
            check(
                all(value == -1 for value in flat[i:]),
                f"Sparse list must not have additional -1s: {shown}",
                "utils.cc:419",
            )
            break
        check(flat[i] <= half, f"Sparse list must not have out-of-bound offsets: {shown}", "utils.cc:424")
        check(
            i == half or flat[i] > flat[i - 1],
            f"Sparse list must not have non-increasing offsets: {shown}",
            "utils.cc:428",
        )
        words.append(tuple(flat[at : flat[i]]))
        at = flat[i]
    return tuple(words)


def sampling_of(inputs):
    """getSamplingConfigFromTensors, and the checks of executor::SamplingConfig's constructor."""
    top_p = scalar(inputs, "runtime_top_p")
    found = Sampling(
        scalar(inputs, "beam_width", 1),
        scalar(inputs, "runtime_top_k"),
        None if top_p is not None and top_p <= 0 else top_p,
        scalar(inputs, "temperature"),
        scalar(inputs, "min_tokens", 0),
        scalar(inputs, "repetition_penalty", 1.0),
        scalar(inputs, "presence_penalty", 0.0),
        scalar(inputs, "frequency_penalty", 0.0),
        scalar(inputs, "len_penalty", 0.0),
        scalar(inputs, "beam_search_diversity_rate", 0.0),
        scalar(inputs, "seed", 0),
        scalar(inputs, "num_return_sequences"),
    )
    for true, message in (
        (
            0 < found.beam_width <= 1024,
            "beamWidth > 0 && beamWidth <= static_cast<SizeType32 "
            "const>(tensorrt_llm::kernels::kMaxBeamWidth)",
        ),
        (found.top_k is None or found.top_k >= 0, "topK.value() >= 0"),
        (found.top_p is None or found.top_p <= 1, "topP.value() <= 1.f"),
        (found.temperature is None or found.temperature >= 0, "temperature.value() >= 0.f"),
        (found.min_tokens >= 0, "minTokens.value() >= 0"),
        (found.repetition_penalty > 0, "repetitionpenalty.value() > 0.f"),
        (found.diversity_rate >= 0, "beamSearchDiversityRate.value() >= 0.f"),
        (
            found.num_return_sequences is None or found.num_return_sequences > 0,
            "numReturnSequences.value() > 0",
        ),
    ):
        check(true, message, "tensorrt_llm/executor/samplingConfig.cpp:251")
    return found


def requests_of(inputs, *, encoder, decoupled, exclude_input):
    """createRequestsFromInputTensors: one request for each row."""
    streaming = "streaming" in inputs and bool(inputs["streaming"].ravel()[0])
    rows = split({name: tensor for name, tensor in inputs.items() if name not in TAKEN_OUT})
    if not decoupled and len(rows) > 1:
        raise TllmError(
            "Batch size > 1 requires the tensorrt_llm backend to be using decoupled transaction policy",
            "utils.cc:900",
        )
    if streaming and not decoupled:
        raise TllmError(
            "Streaming is only supported if model is deployed using decoupled mode.", "utils.cc:905"
        )
    return [_request(row, streaming, encoder, exclude_input) for row in rows]


def prompt_tuning(row, tokens):
    """getPromptTuningConfigFromTensors: the table, and extra ids where there is one for each token; any other
    number of them is passed over in silence. `prompt_vocab_size` is never read: a façade that sends another
    number than it has rows is caught here alone.
    """
    if "prompt_embedding_table" not in row:
        return None, None
    table = row["prompt_embedding_table"]
    table = table[0] if table.ndim > 2 else table  # squeezeTensor
    message = "Expected prompt embedding table to have shape [vocabSize, hiddenSize]"
    check(table.ndim == 2, message, "tensorrt_llm/executor/promptTuningConfig.cpp:29")
    if (told := scalar(row, "prompt_vocab_size")) not in (None, len(table)):
        raise TllmError(f"prompt_vocab_size is {told}, the table has {len(table)} rows", "stand-in")
    extra = vector(row, "prompt_table_extra_ids")
    return table, extra if extra is not None and len(extra) == len(tokens) else None


def _request(row, streaming, encoder, exclude_input):
    for name in (*UNDEFINED, *NOT_PLAYED):
        if name in row and row[name].size:
            raise TllmError(f"{name} is not played by this stand-in", "stand-in")
    tokens, features = vector(row, "input_ids"), row.get("encoder_input_features")
    if tokens is None and features is None:
        raise TllmError("input_ids or encoder_input_features is not present in the request.", "utils.cc:950")
    if "request_output_len" not in row:
        raise RuntimeError("request_output_len is not present in the request")
    encoded = ()
    if encoder:  # the encoder reads input_ids, the decoder its own; without them [pad_id], or nothing
        pad = scalar(row, "pad_id")
        encoded, tokens = tokens or (), vector(row, "decoder_input_ids")
        tokens = tokens if tokens is not None else () if pad is None else (pad,)
    bias = row["embedding_bias"].reshape(-1) if "embedding_bias" in row else None
    check(tokens, "!mInputTokenIds.empty()", "tensorrt_llm/executor/requestImpl.h:390")
    longest = scalar(row, "request_output_len")
    check(longest > 0, "mMaxNewTokens > 0", "tensorrt_llm/executor/requestImpl.h:391")
    return Request(
        tokens,
        longest,
        streaming,
        sampling_of(row),
        bool(scalar(row, "exclude_input_in_output", exclude_input)),
        scalar(row, "end_id"),
        encoded,
        None if features is None else np.asarray(features, np.float32).reshape(features.shape[-2:]),
        word_list(vector(row, "bad_words_list")),
        word_list(vector(row, "stop_words_list")),
        bias if bias is not None and bias.size else None,
        bool(scalar(row, "return_log_probs", False)),
        bool(scalar(row, "return_generation_logits", False)),
        bool(scalar(row, "return_context_logits", False)),
        *prompt_tuning(row, tokens),
    )
