"""What can go wrong in serving, and which of Triton's error codes each means."""

from __future__ import annotations


class QueueFull(Exception):
    """The waiting line is at its limit; the caller should try again later."""


class BadRequest(ValueError):
    """A request that this engine cannot serve; the message names the tensor and the remedy."""


class EngineError(Exception):
    """An error that another Triton model answered with; `code` is Triton's number for its kind."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


def code_name(error: Exception) -> str:
    """INVALID_ARG for what the caller can mend (400), UNAVAILABLE for a full queue (503), INTERNAL for the rest (500)."""
    if isinstance(error, QueueFull):
        return "UNAVAILABLE"
    return "INVALID_ARG" if isinstance(error, ValueError) else "INTERNAL"
