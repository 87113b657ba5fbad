"""Triton's Python module as models see it: tensors, requests, responses and errors."""

from __future__ import annotations

from collections.abc import Sequence
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
    INTERNAL, INVALID_ARG = 1, 3

    def __init__(self, message: str, code: int) -> None:
        self.message, self.code = message, code


class InferenceResponse:
    """`arrays`: its tensors by name."""

    def __init__(self, tensors: Sequence[Tensor] = (), error: TritonError | None = None) -> None:
        self.arrays, self.error = {one.name(): one.array for one in tensors}, error


UTILS: Any = SimpleNamespace(Tensor=Tensor, TritonError=TritonError, InferenceResponse=InferenceResponse)


def request(wanted: Sequence[str] = (), **arrays: NDArray[Any]) -> Any:
    """One for these outputs; its id is a."""
    return SimpleNamespace(
        inputs=lambda: [Tensor(name, array) for name, array in arrays.items()],
        request_id=lambda: "a",
        requested_output_names=lambda: wanted,
        parameters=lambda: "{}",
    )
