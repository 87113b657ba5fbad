"""Kinds of errors on their way through several Triton models."""

from __future__ import annotations

import pytest

from serving.errors import BadRequest, EngineError, QueueFull, code_name, told


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
