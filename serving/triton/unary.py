"""The unary model of the engine: forwards each row, waits in a thread, answers once."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from conch.bundle import EngineFacts
from conch.names import ENGINE

from ..errors import encode_error
from .calls import ALWAYS, engine_id, row_names
from .rows import (
    Arrays,
    greedy_at_zero,
    merge,
    refuse_beams,
    refuse_logits,
    refuse_misread,
    refuse_samples,
    refuse_table,
    split,
    started,
)
from .stub import Request, Sender, Tensor, Utils, arrays_of, tensors_of
from .threaded import ThreadedEndpoint
from .tracing import row_threads


class UnaryFace(ThreadedEndpoint):
    """Sends one response for each request, however many the engine sends. `beams` is the most that are
    served, where the engine has a limit.
    """

    def __init__(self, facts: EngineFacts, beams: int | None, utils: Utils) -> None:
        super().__init__(utils, encode_error)
        self.facts, self.beams, self.utils = facts, beams, utils
        # Of the requests that run here: the engine's ids by their own.
        self.rows: dict[str, list[str]] = {}

    def answer(self, request: Request, sender: Sender) -> None:
        inputs = arrays_of(request.inputs())
        if "streaming" in inputs and inputs["streaming"].any():
            raise ValueError(f"streaming=true requires the decoupled model {ENGINE}")
        if "stop" in inputs and inputs["stop"].any():
            self._stop(request.request_id(), sender)
            return
        rows = self._rows(inputs)
        name, own = engine_id(request)
        # The engine knows the last request of an id only, so rows are told apart.
        names = self.rows[name] = [name, *row_names(name, len(rows))]
        watched = self.stopping(sender, names if own else (), ENGINE)
        try:
            with watched, row_threads(len(rows)) as threads:
                answers = list(threads.map(partial(self._forward, request), rows, names))
        finally:
            self.rows.pop(name, None)
        tensors = answers[0] if len(answers) == 1 else self._merged(answers)
        sender.send(self.utils.InferenceResponse(tensors), self.calls.last)

    def _rows(self, inputs: Arrays) -> list[Arrays]:
        refuse_misread(inputs, self.facts.misread)
        refuse_samples(inputs)
        refuse_beams(inputs, self.beams)
        refuse_logits(inputs, self.facts.vocabulary)
        refuse_table(inputs, self.facts)
        return [started(greedy_at_zero(row), self.facts.decoder_start) for row in split(inputs)]

    def _stop(self, name: str, sender: Sender) -> None:
        """Stop a request's rows. Rows of a façade's request arrive as requests of their own."""
        for own in [key for key in list(self.rows) if key.startswith(f"{name}-row")]:
            self._end(self.rows.get(own, ()))
        self._end(self.rows.get(name, [name]))
        sender.send(self.utils.InferenceResponse([]), self.calls.last)

    def _end(self, names: Sequence[str]) -> None:
        for name in names:
            self.calls.stop(name, ENGINE)

    def _forward(self, request: Request, row: Arrays, name: str) -> list[Tensor]:
        """Forward tensors as they are: copying them while decoupled calls run in several threads has crashed
        the stub (docs/decisions/0002-two-faces.md).
        """
        answer: list[Tensor] = []
        outputs = list(dict.fromkeys([*ALWAYS, *request.requested_output_names()]))
        for response in self.calls.call(ENGINE, tensors_of(self.utils, row), outputs, name, decoupled=True):
            answer = response.output_tensors() or answer
        return answer

    def _merged(self, answers: Sequence[Sequence[Tensor]]) -> list[Tensor]:
        return tensors_of(self.utils, merge([arrays_of(answer) for answer in answers]))
