"""Errors in serving, and the Triton error code of each."""

from __future__ import annotations

import re
from typing import Any

from numpy.typing import NDArray

ABORTED = -1  # sequence_length of a stream that ends with an error after some of it was sent
# Request parameter of the models that call another one: between models Triton 24.10 loses an error that comes
# after other responses, and the stream's end with it, so they get ABORTED instead.
ABORT_SUPPORTED = "conch_abort_supported"


class QueueFull(Exception):
    """The request queue is full; the caller should try again later."""


class BadRequest(ValueError):
    """A request that this engine cannot serve; the message names the tensor and the remedy."""


KINDS = ("INVALID_ARG", "UNAVAILABLE", "INTERNAL")


# TensorRT-LLM's errors carry no code. Messages that contain these phrases are the client's fault
# (llmRequest.cpp `validate`, executor/samplingConfig.cpp, utils.cc) …
CLIENT_ERROR_PHRASES = (
    "beam width",
    "exceeds maximum input length",
    "exceeds maximum encoder input length",
    "is not within acceptable range",
    "incorrect sampling config",
    "samplingconfig.cpp",
    "sparse list must not",
    "input token extra ids must be provided",
    "invalid size for tensor",
    "embedding bias shape",
    "gather_context_logits",
    "gather_generation_logits",
    "minputtokenids.empty()",
    "mmaxnewtokens > 0",
    "is not present in the request",
    "request id is not provided",
    "guideddecodingparams",
)
# … and these are worth a retry (executorImpl.cpp, `enqueueRequests`).
RETRY_PHRASES = ("maximum queue size",)
WRAPPED = re.compile(
    r"^Executor failed process requestId \d+ due to the following error: (?:Encountered an error when "
    r"fetching new request: )?"
)
TAG = re.compile(r"\[TensorRT-LLM\]\[ERROR\] (?:Assertion failed: )?")
# Where in the source, and the backtrace after it.
PLACE = re.compile(r" \((?:/[\w./-]+|[\w/.-]+\.(?:cpp|cc|h)):\d+\).*", re.DOTALL)


class EngineError(Exception):
    """An error from another Triton model. Between models Triton 24.10 turns every code into INTERNAL, so ours
    travel in the text.
    """

    def __init__(self, message: str) -> None:
        kind, _, rest = message.partition(": ")
        self.kind = kind if kind in KINDS else kind_of(message)
        super().__init__(rest if kind in KINDS else plain(message))


def kind_of(message: str) -> str:
    """Classify an error of TensorRT-LLM by its text."""
    lower = message.lower()
    return (
        "UNAVAILABLE"
        if any(phrase in lower for phrase in RETRY_PHRASES)
        else "INVALID_ARG"
        if any(phrase in lower for phrase in CLIENT_ERROR_PHRASES)
        else "INTERNAL"
    )


def plain(message: str) -> str:
    """Return the sentence of a TensorRT-LLM error, without wrapping, tag, source location and backtrace."""
    return PLACE.sub("", TAG.sub("", WRAPPED.sub("", message))).strip() or message


def raise_if_aborted(arrays: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Return one response of an engine's stream, or raise if it announces an error.

    Raises:
        EngineError: the engine failed in the middle.
    """
    if "sequence_length" in arrays and (arrays["sequence_length"] == ABORTED).any():
        raise EngineError("the engine failed while generating; retry the request")
    return arrays


def code_name(error: Exception) -> str:
    """Return INVALID_ARG for what the caller can fix (400), UNAVAILABLE for a full queue (503), INTERNAL for
    the rest (500).
    """
    if isinstance(error, EngineError):
        return error.kind
    if isinstance(error, QueueFull):
        return "UNAVAILABLE"
    return "INVALID_ARG" if isinstance(error, ValueError) else "INTERNAL"


def message_of(error: Exception) -> str:
    """Return the message for clients."""
    return str(error) or repr(error)


def encode_error(error: Exception) -> str:
    """Encode an error's kind and sentence for the models that call the engine."""
    return f"{code_name(error)}: {message_of(error)}"
