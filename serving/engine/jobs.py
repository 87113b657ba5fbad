"""One request in the scheduler, its listener, and the scheduler's limits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from math import inf
from typing import Any, Protocol

from numpy.typing import NDArray

from conch.bundle import EngineFacts

from ..errors import BadRequest
from .guidance import Guide
from .runtime import Memory, Row
from .sampling import Hypothesis, Looked, Sampling
from .strategies import Strategy, strategy


@dataclass(frozen=True)
class Limits:
    """Parameters of a bundle.

    Attributes:
        max_rows: rows that step together
        join_at_once: requests admitted between two steps of running ones. More fill the batch better (a step
            of 8 rows costs as much as 2.6 steps of one); fewer make running requests wait for fewer encoders
        max_queue: requests that may wait
        prefill_tokens: prompt ids that are read between two steps of running texts; 0 for whole prompts
    """

    max_rows: int = 16
    join_at_once: int = 4
    max_queue: int = 256
    prefill_tokens: int = 0

    @classmethod
    def of(cls, parameters: Mapping[str, Any]) -> Limits:
        """Read the limits that are set."""
        names = (field.name for field in fields(cls))
        return cls(**{name: parameters[name] for name in names if name in parameters})


DEFAULTS = Limits()


class Listener(Protocol):
    """Receives a request's tokens."""

    def cancelled(self) -> bool:
        """Tell whether the client has gone."""
        ...

    def update(self, beams: list[Hypothesis]) -> None:
        """Receive all hypotheses so far, best first; called after each token of a streaming request."""
        ...

    def finish(self, beams: list[Hypothesis]) -> None:
        """Receive the result; the last call."""
        ...

    def fail(self, error: Exception) -> None:
        """Receive an error; the last call."""
        ...


@dataclass(eq=False)  # two equal requests are still two; comparing them would compare arrays
class Job:
    """A request: features or ids for the encoder (None for decoder-only families), the decoder's first ids,
    sampling, and the listener.

    Attributes:
        attend: also return cross-attention of each generated id: `seen`, float16 [heads, steps, encoder
            positions], including the step that ended the text
        stopped: the request was cancelled
        table: see Row
        guide: grammar that the text must follow
        log_probs: return log probabilities of the ids
        sequences: how many of the beams to return
        exclude_prompt: return the generated ids only, as streams always do
    """

    prompt: tuple[int, ...]
    sampling: Sampling
    listener: Listener
    source: Any = None
    streaming: bool = False
    request_id: str = ""
    attend: bool = False
    stopped: bool = False
    table: NDArray[Any] | None = None
    guide: Guide | None = None
    log_probs: bool = False
    sequences: int = 1
    exclude_prompt: bool = True
    memory: Memory | None = None
    choice: Sampling | None = None
    strategy: Strategy = field(init=False)
    rows: list[Row] = field(default_factory=list)
    seen: Looked | None = None
    first_row: int = 0
    position: int = 0
    reads: int = 0  # ids of its prompt that the next step reads
    # Of time.monotonic(): when it came, is due (what is due later joins later), was admitted, had its first
    # token, joined the running batch, and when its client was last asked for.
    came: float = 0.0
    due: float = 0.0
    admitted: float = 0.0
    begun: float = 0.0
    joined: float = 0.0
    asked: float = -inf
    trace: Any = None  # what its spans are part of

    def __post_init__(self) -> None:
        self.strategy = strategy(self.prompt, self.sampling, self.guide)

    def check(self, facts: EngineFacts, limits: Limits) -> None:
        """Check that an engine can run it.

        Raises:
            BadRequest: prompt and max_tokens do not fit, too many beams, or an output that it does not give.
        """
        positions = facts.positions
        if self.attend and not facts.attends:
            raise BadRequest("return_step_attention is not supported by this engine; omit it")
        if not self.prompt:
            raise BadRequest("decoder_input_ids is empty; send at least the start id")
        if len(self.prompt) >= positions:
            raise BadRequest(
                f"the prompt has {len(self.prompt)} ids, this model has {positions} positions; shorten it"
            )
        if not 1 <= self.sampling.beam_width <= limits.max_rows:
            raise BadRequest(
                f"beam_width is {self.sampling.beam_width}, this engine takes 1 to {limits.max_rows}"
            )
        if not 1 <= self.sampling.max_tokens <= positions - len(self.prompt):
            raise BadRequest(f"request_output_len is {self.sampling.max_tokens}; it must be at least 1")

    @property
    def steps(self) -> int:
        """Return how many steps it has made."""
        return max(0, self.position - len(self.prompt))

    def row(self, parent: int | None, ids: tuple[int, ...]) -> Row:
        """Return one of its rows for the next step, which continues row `parent` of the last step."""
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
        """Tell whether it has started and part of its prompt is not read yet."""
        return self.position < len(self.prompt)

    def read_on(self, parent: int, most: int) -> None:
        """Set its next row to read more of its prompt, or, if all is being read, to wait for its first id."""
        if self.reading:
            self.read(parent, most)
        else:
            self.rows[0].parent, self.reads = parent, 0

    def read(self, parent: int | None, most: int, known: int = 0) -> None:
        """Set its next row to read so many more ids of its prompt (0: all). The first `known` are cached."""
        self.position += known
        ids = self.prompt[self.position : self.position + most if most else None]
        row = self.row(parent, ids)
        row.before, self.position = self.prompt[: self.position], self.position + len(ids)
        row.coming, self.reads = len(self.prompt) - self.position, len(ids)
        self.rows = [row]

    def read_less(self, count: int) -> None:
        """Leave the last `count` ids that its next row reads to later ones."""
        (row,) = self.rows
        row.ids = row.ids[:-count]
        self.position -= count
        row.coming, self.reads = row.coming + count, self.reads - count
