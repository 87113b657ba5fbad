"""A scheduler listener for callers that can wait: evaluations and tests."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field

from .sampling import Hypothesis


@dataclass
class Collected:
    """Stores the result."""

    on_update: Callable[[list[Hypothesis]], None] | None = None
    result: Future[list[Hypothesis]] = field(default_factory=Future)
    dropped: bool = False

    def cancelled(self) -> bool:
        return self.dropped

    def update(self, beams: list[Hypothesis]) -> None:
        if self.on_update:
            self.on_update(beams)

    def finish(self, beams: list[Hypothesis]) -> None:
        self.result.set_result(beams)

    def fail(self, error: Exception) -> None:
        self.result.set_exception(error)

    def wait(self, seconds: float) -> list[Hypothesis]:
        """Return the result, or raise the error, or TimeoutError."""
        return self.result.result(seconds)
