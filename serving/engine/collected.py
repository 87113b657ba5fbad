"""A scheduler listener for callers that can wait: evaluations and tests."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from .sampling import Hypothesis


@dataclass
class Collected:
    """Stores the result."""

    on_update: Callable[[list[Hypothesis]], None] | None = None
    beams: list[Hypothesis] = field(default_factory=list)
    error: Exception | None = None
    done: threading.Event = field(default_factory=threading.Event)
    dropped: bool = False

    def cancelled(self) -> bool:
        return self.dropped

    def update(self, beams: list[Hypothesis]) -> None:
        if self.on_update:
            self.on_update(beams)

    def finish(self, beams: list[Hypothesis]) -> None:
        self.beams = beams
        self.done.set()

    def fail(self, error: Exception) -> None:
        self.error = error
        self.done.set()

    def wait(self, seconds: float) -> list[Hypothesis]:
        """Return the result, or raise the error."""
        if not self.done.wait(seconds):
            raise TimeoutError(f"no result within {seconds} s")
        if self.error:
            raise self.error
        return self.beams
