"""What Python models of a Triton repository have in common; each one's `initialize` makes its `endpoint`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class PythonModel:
    """A model whose endpoint returns one response for each request, or, if it is decoupled, None."""

    endpoint: Any

    def execute(self, requests: Sequence[Any]) -> list[Any] | None:
        """Pass Triton's requests to the endpoint."""
        responses: list[Any] | None = self.endpoint.execute(requests)
        return responses


class ThreadedModel(PythonModel):
    """A model whose endpoint has threads, which end when the model is unloaded."""

    def finalize(self) -> None:
        """Close the endpoint."""
        self.endpoint.close()
