"""Triton's Python module as models see it: tensors, requests, responses and errors."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

from numpy.typing import NDArray


class Tensor:
    def __init__(self, name: str, array: NDArray[Any]) -> None:
        self._name, self.array = name, array

    def name(self) -> str:
        return self._name

    def as_numpy(self) -> NDArray[Any]:
        return self.array


class TritonError:
    INTERNAL, UNAVAILABLE, INVALID_ARG = 1, 2, 3

    def __init__(self, message: str, code: int) -> None:
        self.message, self.code = message, code


class InferenceResponse:
    """`arrays`: its tensors by name."""

    def __init__(self, tensors: Sequence[Tensor] = (), error: TritonError | None = None) -> None:
        self.arrays, self.error = {one.name(): one.array for one in tensors}, error


UTILS: Any = SimpleNamespace(
    Tensor=Tensor,
    TritonError=TritonError,
    InferenceResponse=InferenceResponse,
    TRITONSERVER_RESPONSE_COMPLETE_FINAL=1,
)


class Answered:
    """The sender of a request's only response."""

    def __init__(self) -> None:
        self.response: Future[Any] = Future()

    def send(self, response: Any, flags: int) -> None:
        assert flags == UTILS.TRITONSERVER_RESPONSE_COMPLETE_FINAL
        self.response.set_result(response)


def answers_of(endpoint: Any, requests: Sequence[Any]) -> list[Any]:
    """The response to each of the requests, which come together."""
    senders = [Answered() for _ in requests]
    for one, sender in zip(requests, senders, strict=True):
        one.get_response_sender = lambda sender=sender: sender
    endpoint.execute(requests)
    return [sender.response.result(timeout=10) for sender in senders]


def request(wanted: Sequence[str] = (), **arrays: NDArray[Any]) -> Any:
    """One for these outputs; its id is a."""
    return SimpleNamespace(
        inputs=lambda: [Tensor(name, array) for name, array in arrays.items()],
        request_id=lambda: "a",
        requested_output_names=lambda: wanted,
        parameters=lambda: "{}",
    )
