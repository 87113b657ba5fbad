"""Filters of a text that a model writes piece by piece: what may be the start of a mark is held back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum

THINK, ANSWER = "<think>", "</think>"


def partial_end(text: str, mark: str) -> int:
    """Return how many of the last characters may start the mark."""
    return next((n for n in range(min(len(mark) - 1, len(text)), 0, -1) if text.endswith(mark[:n])), 0)


@dataclass
class StopSequenceFilter:
    """Ends text before a stop sequence."""

    stops: Sequence[str]
    held: str = ""
    stopped: bool = field(default=False, init=False)

    def add(self, text: str, *, last: bool = False) -> str:
        """Return what can be sent now."""
        whole, self.held = self.held + text, ""
        found = [at for stop in self.stops if (at := whole.find(stop)) >= 0]
        if found:
            self.stopped = True
            return whole[: min(found)]
        keep = 0 if last else max((partial_end(whole, stop) for stop in self.stops), default=0)
        self.held = whole[len(whole) - keep :]
        return whole[: len(whole) - keep]


class Phase(Enum):
    """Where a text is: it may begin with reasoning, it reasons, or it answers."""

    START = "start"
    REASONING = "reasoning"
    ANSWER = "answer"


@dataclass
class ReasoningFilter:
    """Separates the reasoning that a model writes between `<think>` and `</think>` before its answer."""

    phase: Phase = Phase.ANSWER
    held: str = field(default="", init=False)
    begun: bool = field(default=False, init=False)
    shown: bool = field(default=False, init=False)

    def add(self, text: str, *, last: bool = False) -> tuple[str, str]:
        """Return the reasoning and the answer that can be sent now."""
        whole, self.held = self.held + text, ""
        if not self.begun and self.phase is not Phase.ANSWER:
            start = whole.lstrip()
            if not last and start != THINK and THINK.startswith(start):
                self.held = whole
                return "", ""
            self.begun = True
            if start.startswith(THINK):
                self.phase, whole = Phase.REASONING, start[len(THINK) :]
            elif self.phase is Phase.START:
                self.phase = Phase.ANSWER
        if self.phase is Phase.ANSWER:
            return "", whole
        whole = whole if self.shown else whole.lstrip()
        reasoning, closed, answer = whole.partition(ANSWER)
        if closed:
            self.phase = Phase.ANSWER
            return reasoning.rstrip(), answer
        kept = reasoning if last else reasoning[: len(reasoning) - partial_end(reasoning, ANSWER)].rstrip()
        self.held = reasoning[len(kept) :]
        self.shown = self.shown or bool(kept)
        return kept, ""
