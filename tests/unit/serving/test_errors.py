"""Kinds of errors on their way through several Triton models."""

from __future__ import annotations

import numpy as np
import pytest

from serving.engine.answers import Answers
from serving.errors import BadRequest, EngineError, QueueFull, code_name, encode_error, raise_if_aborted


@pytest.mark.parametrize(
    ("error", "name"),
    [
        (BadRequest("too long: 5"), "INVALID_ARG"),
        (QueueFull("256 wait"), "UNAVAILABLE"),
        (RuntimeError("oh"), "INTERNAL"),
    ],
)
def test_kinds_survive_the_way(error: Exception, name: str) -> None:
    """What one model tells the next has the same kind and the same sentence there, over two models
    as well.
    """
    once = EngineError(encode_error(error))
    assert (code_name(once), str(once)) == (name, str(error))
    assert code_name(EngineError(encode_error(once))) == name


def test_other_engines_errors_stay_as_they_are() -> None:
    """TensorRT-LLM's messages have no kind in front."""
    error = EngineError("Encountered error for requestId 7: out of memory")
    assert (code_name(error), str(error)) == ("INTERNAL", "Encountered error for requestId 7: out of memory")


TAG = "[TensorRT-LLM][ERROR] "
FETCHING = (
    "Executor failed process requestId 7 due to the following error: Encountered an error when fetching new "
    f"request: {TAG}"
)
PLACE = (
    " (/home/jenkins/agent/workspace/LLM/tensorrt_llm/cpp/tensorrt_llm/batch_manager/llmRequest.cpp:248)\n1 "
    "0x7f1f3c0a53e8 libtriton_tensorrtllm.so(+0x1c3e8)"
)
FAILED, FETCHED = f"{TAG}Assertion failed: ", f"{FETCHING}Assertion failed: "
EXTRA = "Input token extra ids must be provided when enabling kv cache reuse with prompt table"


@pytest.mark.parametrize(
    ("before", "sentence", "behind", "kind"),
    [
        (FETCHING, "Prompt length (300) exceeds maximum input length (228).", PLACE, "INVALID_ARG"),
        (FETCHED, "Encoder length (3100) exceeds maximum encoder input length (3000).", PLACE, "INVALID_ARG"),
        (FETCHED, "EndId (99) is not within acceptable range [-1, 50).", PLACE, "INVALID_ARG"),
        (FETCHED, "Incorrect sampling config", PLACE, "INVALID_ARG"),
        (FAILED, "topP.value() <= 1.f", PLACE.replace("llmRequest", "samplingConfig"), "INVALID_ARG"),
        (FAILED, "Requested beam width 9 is larger than configured max beam width 1", "", "INVALID_ARG"),
        (FAILED, EXTRA, PLACE, "INVALID_ARG"),
        (TAG, "Maximum queue size of 256 has been reached, please try again later", PLACE, "UNAVAILABLE"),
        (TAG, "CUDA runtime error in cudaMemcpyAsync: out of memory", PLACE, "INTERNAL"),
    ],
)
def test_the_kind_of_tensorrt_llms_errors_is_told_by_their_words(
    before: str, sentence: str, behind: str, kind: str
) -> None:
    """What a caller can mend is a 400, a full queue a 503; the sentence loses its tag, its place in the
    source and the backtrace.
    """
    error = EngineError(before + sentence + behind)
    assert code_name(error) == kind
    assert str(error).startswith(sentence)
    assert not any(part in str(error) for part in ("jenkins", "0x7f", "[ERROR]", "requestId"))
    assert code_name(EngineError(f"INTERNAL: {before}{sentence}{behind}")) == "INTERNAL"


def test_a_broken_stream_is_an_error() -> None:
    """Between models Triton loses an error after other responses; a tensor reports it."""
    with pytest.raises(EngineError, match="failed while generating"):
        raise_if_aborted(Answers.aborted())


def test_everything_else_passes() -> None:
    """Also a stream that had nothing to say, and responses without lengths."""
    for arrays in ({"sequence_length": np.zeros((1, 1), np.int32)}, {"cross_attention": np.zeros((1, 2))}):
        assert raise_if_aborted(arrays) is arrays
