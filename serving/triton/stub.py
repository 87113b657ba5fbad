"""What models use of `triton_python_backend_utils`, which exists inside Triton's Python stub only
(https://github.com/triton-inference-server/python_backend, src/resources/triton_python_backend_utils.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from numpy.typing import NDArray


class Tensor(Protocol):
    """A named tensor in the CPU's memory."""

    def name(self) -> str:
        """As config.pbtxt says it."""

    def as_numpy(self) -> NDArray[Any]:
        """BYTES come as an object array of bytes."""


class Sender(Protocol):
    """Where the responses to one request go."""

    def is_cancelled(self) -> bool:
        """Nobody waits any more. Asked after the last response was sent, it ends tritonserver 24.10."""

    def send(self, response: Any = None, flags: int = 0) -> None:
        """One response, or with the final flag the last one, which may be none."""


class Request(Protocol):
    """One request, of one or several rows."""

    def inputs(self) -> Sequence[Tensor]:
        """Those that the client sent."""

    def request_id(self) -> str:
        """The client's own; empty without one."""

    def requested_output_names(self) -> Sequence[str]:
        """Empty: all of them."""

    def parameters(self) -> str:
        """A JSON object."""

    def get_response_sender(self) -> Sender:
        """Sends the responses of this request; Triton keeps the request alive until its last one."""


class Utils(Protocol):
    """The module."""

    TRITONSERVER_RESPONSE_COMPLETE_FINAL: int
    TritonError: Any
    Tensor: Any
    InferenceRequest: Any
    InferenceResponse: Any


def arrays_of(request: Request) -> dict[str, NDArray[Any]]:
    """The inputs of a request by their names."""
    return {tensor.name(): tensor.as_numpy() for tensor in request.inputs()}


def is_decoupled(config: dict[str, Any]) -> bool:
    """Whether a model, by its configuration, may answer a request more than once."""
    return bool(config.get("model_transaction_policy", {}).get("decoupled", False))
