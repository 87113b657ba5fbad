"""Kinds of errors on their way through several Triton models."""

from __future__ import annotations

import numpy as np
import pytest

from serving.engine_io import Answers
from serving.errors import BadRequest, EngineError, QueueFull, code_name, told, unbroken


@pytest.mark.parametrize(("error", "name"), [(BadRequest("too long: 5"), "INVALID_ARG"), (QueueFull("256 wait"), "UNAVAILABLE"), (RuntimeError("oh"), "INTERNAL")])
def test_kinds_survive_the_way(error: Exception, name: str) -> None:
    """What one model tells the next has the same kind and the same sentence there, over two models as well."""
    once = EngineError(told(error))
    assert (code_name(once), str(once)) == (name, str(error))
    assert code_name(EngineError(told(once))) == name


def test_other_engines_errors_stay_as_they_are() -> None:
    """TensorRT-LLM's messages have no kind in front."""
    error = EngineError("Encountered error for requestId 7: out of memory")
    assert (code_name(error), str(error)) == ("INTERNAL", "Encountered error for requestId 7: out of memory")


@pytest.mark.parametrize(
    "message",
    [
        "Encountered an error: Prompt length (300) exceeds maximum input length (228). Set log level to info and check TRTGptModel logs",
        "[TensorRT-LLM][ERROR] Assertion failed: Requested beam width 9 is larger than configured max beam width 1",
    ],
)
def test_what_a_caller_can_mend_is_told_by_its_words(message: str) -> None:
    """A prompt that is too long or too many beams; the sentence stays as it is."""
    assert (code_name(EngineError(message)), str(EngineError(message))) == ("INVALID_ARG", message)
    assert code_name(EngineError(f"INTERNAL: {message}")) == "INTERNAL"


def test_a_broken_stream_is_an_error() -> None:
    """Between models Triton loses an error behind other responses; a tensor says it."""
    with pytest.raises(EngineError, match="gave up"):
        unbroken(Answers.broken())


def test_everything_else_passes() -> None:
    """Also a stream that had nothing to say, and responses without lengths."""
    for arrays in ({"sequence_length": np.zeros((1, 1), np.int32)}, {"cross_attention": np.zeros((1, 2))}):
        assert unbroken(arrays) is arrays
