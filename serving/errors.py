"""What can go wrong in serving, and which of Triton's error codes each means."""

from __future__ import annotations

import re
from typing import Any

from numpy.typing import NDArray

ABORTED = -1  # sequence_length of a stream that ends with an error after some of it was sent
# Request parameter of the models that call another one: between models Triton 24.10 loses an error that comes
# after other responses, and the stream's end with it, so they get ABORTED instead.
ABORT_SUPPORTED = "conch_abort_supported"


class QueueFull(Exception):
    """The waiting line is at its limit; the caller should try again later."""


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
PLACE = re.compile(
    r" \((?:/[\w./-]+|[\w/.-]+\.(?:cpp|cc|h)):\d+\).*", re.DOTALL
)  # where in the source, and the backtrace after it


class EngineError(Exception):
    """An error that another Triton model answered with. Between models Triton 24.10 makes every code
    INTERNAL, so ours travel in the text.
    """

    def __init__(self, message: str) -> None:
        kind, _, rest = message.partition(": ")
        self.kind = kind if kind in KINDS else kind_of(message)
        super().__init__(rest if kind in KINDS else plain(message))


def kind_of(message: str) -> str:
    """What an error of TensorRT-LLM's means, by its words."""
    lower = message.lower()
    return (
        "UNAVAILABLE"
        if any(phrase in lower for phrase in RETRY_PHRASES)
        else "INVALID_ARG"
        if any(phrase in lower for phrase in CLIENT_ERROR_PHRASES)
        else "INTERNAL"
    )


def plain(message: str) -> str:
    """The sentence of an error of TensorRT-LLM's, without what wraps it, its tag, its place in the source and
    the backtrace.
    """
    return PLACE.sub("", TAG.sub("", WRAPPED.sub("", message))).strip() or message


def raise_if_aborted(arrays: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """One response of an engine's stream, as it is.

    Raises:
        EngineError: the engine failed in the middle.
    """
    if "sequence_length" in arrays and (arrays["sequence_length"] == ABORTED).any():
        raise EngineError("the engine failed while generating; retry the request")
    return arrays


def code_name(error: Exception) -> str:
    """INVALID_ARG for what the caller can mend (400), UNAVAILABLE for a full queue (503), INTERNAL for the
    rest (500).
    """
    if isinstance(error, EngineError):
        return error.kind
    if isinstance(error, QueueFull):
        return "UNAVAILABLE"
    return "INVALID_ARG" if isinstance(error, ValueError) else "INTERNAL"


def message_of(error: Exception) -> str:
    """What a client reads."""
    return str(error) or repr(error)


def encode_error(error: Exception) -> str:
    """What an engine says to the models that call it: kind and sentence."""
    return f"{code_name(error)}: {message_of(error)}"
