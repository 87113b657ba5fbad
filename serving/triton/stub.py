"""Protocols for what models use of `triton_python_backend_utils`, which exists inside Triton's Python stub
only (https://github.com/triton-inference-server/python_backend,
src/resources/triton_python_backend_utils.py).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Protocol

from numpy.typing import NDArray

from ..errors import code_name


class Tensor(Protocol):
    """A named tensor in host memory."""

    def name(self) -> str:
        """Return its name in config.pbtxt."""

    def as_numpy(self) -> NDArray[Any]:
        """Return the array; BYTES become an object array of bytes."""


class Sender(Protocol):
    """Sends the responses to one request."""

    def is_cancelled(self) -> bool:
        """Tell whether the client has gone. Asking after the last response was sent crashes tritonserver
        24.10.
        """

    def send(self, response: Any = None, flags: int = 0) -> None:
        """Send one response, or with the final flag the last one, which may be empty."""


class Request(Protocol):
    """One request, of one or several rows."""

    def inputs(self) -> Sequence[Tensor]:
        """Return the inputs that the client sent."""

    def request_id(self) -> str:
        """Return the client's own id; empty without one."""

    def requested_output_names(self) -> Sequence[str]:
        """Return the requested outputs; empty for all of them."""

    def parameters(self) -> str:
        """Return a JSON object."""

    def get_response_sender(self) -> Sender:
        """Return the sender of this request's responses; Triton keeps the request until the last."""


class Utils(Protocol):
    """The module."""

    TRITONSERVER_RESPONSE_COMPLETE_FINAL: int
    TritonError: Any
    Tensor: Any
    InferenceRequest: Any
    InferenceResponse: Any


def arrays_of(tensors: Iterable[Tensor]) -> dict[str, NDArray[Any]]:
    """Return tensors by name."""
    return {tensor.name(): tensor.as_numpy() for tensor in tensors}


def tensors_of(utils: Utils, arrays: Mapping[str, NDArray[Any]]) -> list[Any]:
    """Make Triton's tensors from arrays of any shape, in Triton's order [rows, …]."""
    return [utils.Tensor(name, array) for name, array in arrays.items()]


def response_of(utils: Utils, arrays: Mapping[str, NDArray[Any]], wanted: Collection[str]) -> Any:
    """Make a response of the arrays in `wanted`."""
    named = {name: array for name, array in arrays.items() if name in wanted}
    return utils.InferenceResponse(tensors_of(utils, named))


def failure_of(utils: Utils, error: Exception, message: str) -> Any:
    """Make the response of an error: its code, and a message."""
    code = getattr(utils.TritonError, code_name(error))
    return utils.InferenceResponse(error=utils.TritonError(message, code))


def is_decoupled(config: dict[str, Any]) -> bool:
    """Tell whether a model's configuration allows several responses to a request."""
    return bool(config.get("model_transaction_policy", {}).get("decoupled", False))
