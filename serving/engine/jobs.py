"""One request in the scheduler, its listener, and the limits of all."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from math import inf
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from .guidance import Guide
from .runtime import Memory, Row
from .sampling import Hypothesis, Looked, Sampling
from .strategies import Strategy, strategy


@dataclass(frozen=True)
class Limits:
    """Parameters of a bundle. `max_rows`: rows that step together; `join_at_once`: requests let in between
    two steps of running ones (more make a fuller batch: a step of 8 rows costs 2.6 steps of one; fewer let
    those that run wait for fewer encoders); `max_queue`: requests that may wait; `prefill_tokens`: ids of
    prompts that are read between two steps of running texts (0: whole prompts).
    """

    max_rows: int = 16
    join_at_once: int = 4
    max_queue: int = 256
    prefill_tokens: int = 0

    @classmethod
    def of(cls, parameters: Mapping[str, Any]) -> Limits:
        """Those that are set."""
        names = (field.name for field in fields(cls))
        return cls(**{name: parameters[name] for name in names if name in parameters})


DEFAULTS = Limits()


class Listener(Protocol):
    """Where a request's tokens go."""

    def cancelled(self) -> bool:
        """True when nobody waits any more."""
        ...

    def update(self, beams: list[Hypothesis]) -> None:
        """All hypotheses so far, best first; called after each token of a streaming request."""
        ...

    def finish(self, beams: list[Hypothesis]) -> None:
        """The result; the last call."""
        ...

    def aligned(self, attention: NDArray[np.float16]) -> None:
        """The result of a request to align: float16 [heads, ids, memory]; the last call."""
        ...

    def fail(self, error: Exception) -> None:
        """No result; the last call."""
        ...


@dataclass(eq=False)  # two equal requests are still two; comparing them would compare arrays
class Job:
    """A request: features or ids for the encoder (None for decoder-only families), the decoder's first ids,
    how to choose, whom to tell.

    `align`: not tokens are wanted, but where the decoder looks while it reads `prompt`. `attend`: where it
    looked when it made each id is wanted too, and at the end `seen` tells: float16 [heads, steps, memory],
    the step that ended the text included. `stopped`: somebody wants no more of it. `table`: see Row.
    `guide`: what the text must follow.
    """

    prompt: tuple[int, ...]
    sampling: Sampling
    listener: Listener
    source: Any = None
    streaming: bool = False
    request_id: str = ""
    align: bool = False
    attend: bool = False
    stopped: bool = False
    table: NDArray[Any] | None = None
    guide: Guide | None = None
    memory: Memory | None = None
    choice: Sampling | None = None
    strategy: Strategy = field(init=False)
    rows: list[Row] = field(default_factory=list)
    seen: Looked | None = None
    first_row: int = 0
    position: int = 0
    # Of time.monotonic(): when it came, was admitted, had its first token, joined the running batch, and when
    # its client was last asked for.
    came: float = 0.0
    admitted: float = 0.0
    begun: float = 0.0
    joined: float = 0.0
    asked: float = -inf
    trace: Any = None  # what its spans are part of

    def __post_init__(self) -> None:
        self.strategy = strategy(self.prompt, self.sampling, self.guide)

    @property
    def steps(self) -> int:
        """How many it has made."""
        return max(0, self.position - len(self.prompt))

    def row(self, parent: int | None, ids: tuple[int, ...]) -> Row:
        """One of its rows of the next step, which continues row `parent` of the last."""
        return Row(
            parent,
            ids,
            self.position,
            self.memory,
            self.sampling.bias,
            self.choice,
            self.table,
            self.attend,
        )

    @property
    def reading(self) -> bool:
        """Whether it has begun, and some of its prompt has yet to be read."""
        return self.position < len(self.prompt)

    def read(self, parent: int | None, most: int) -> None:
        """Its row of the next step is so much more of its prompt (0: all)."""
        ids = self.prompt[self.position : self.position + most if most else None]
        row = self.row(parent, ids)
        row.before, self.position = self.prompt[: self.position], self.position + len(ids)
        row.coming = len(self.prompt) - self.position
        self.rows = [row]
