"""What a façade's Triton models share: refusing requests, calling the engine's unary and decoupled models,
and streaming to a client that may leave.

`utils` is triton_python_backend_utils, which exists inside Triton's Python stub only.
"""

from __future__ import annotations

import time
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from math import inf
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from conch.names import ENGINE, ENGINE_UNARY

from ..errors import ABORT_SUPPORTED, EngineError, message_of, raise_if_aborted
from .rows import greedy_at_zero
from .stub import arrays_of, failure_of, response_of, tensors_of
from .tracing import following
from .watch import PERIOD

Arrays = dict[str, NDArray[Any]]
Response = TypeVar("Response")
# TensorRT-LLM's backend refuses a request that names outputs without these.
ALWAYS = ("output_ids", "sequence_length")
HELD_SECONDS = 5.0


def drained(responses: Iterable[Response]) -> Iterator[Response]:
    """Yield the responses, and drain the rest if the consumer stops early or fails.

    A decoupled call whose last response was never read prevents the model that made it from being unloaded:
    its tritonserver then stops only after --exit-timeout-secs (seen with Triton 24.10).
    """
    ended = False
    try:
        yield from responses
        ended = True
    finally:
        if not ended:
            for _ in responses:
                pass


class Held:
    """Keeps decoupled calls alive for some seconds after they were made.

    The stub drops a call in a C++ thread that does not hold Python's GIL (python_backend, src/pb_stub.cc,
    `SendCleanupId`, in r24.10 and r25.07). If that was the last reference, Python objects are freed there:
    with Python 3.12, which NVIDIA's image has, the stub dies within seconds of load.
    """

    def __init__(self, seconds: float = HELD_SECONDS) -> None:
        self.seconds = seconds
        self.calls: deque[tuple[float, Any]] = deque()

    def keep(self, call: Response) -> Response:
        """Keep a call."""
        now = time.monotonic()
        self.calls.append((now, call))
        while len(self.calls) > 1 and now - self.calls[0][0] > self.seconds:
            with suppress(IndexError):  # another thread was faster
                self.calls.popleft()
        return call

    def release(self) -> None:
        """Drop all calls while the stub's shared memory exists: freeing one later crashes the stub."""
        self.calls.clear()


class BlsClient:
    """Responds to a model's callers, and calls other models."""

    def __init__(self, utils: Any, encode: Callable[[Exception], str] = message_of) -> None:
        self.utils, self.encode, self.last = utils, encode, utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
        self.held = Held()

    def close(self) -> None:
        """Stop when the model is unloaded."""
        self.held.release()

    def refuse(self, sender: Any, error: Exception) -> None:
        """Send the error as the only response."""
        sender.send(failure_of(self.utils, error, self.encode(error)), self.last)

    def answer(self, sender: Any, arrays: Arrays, wanted: set[str]) -> None:
        """Send the only response."""
        sender.send(response_of(self.utils, arrays, wanted), self.last)

    def stream(self, sender: Any, results: Iterable[Arrays], wanted: set[str], own: str | None) -> None:
        """Send a response for each result. When the client leaves, the engine's request `own` is stopped and
        nothing more is sent. Asking Triton takes a message and up to a millisecond of a busy CPU, so it is
        not done for each token.
        """
        gone, asked = False, -inf
        for arrays in results:
            if not gone and (now := time.monotonic()) - asked >= PERIOD:
                asked, gone = now, sender.is_cancelled()
                if gone and own:
                    self.stop(own)
            if not gone:
                sender.send(response_of(self.utils, arrays, wanted))
        sender.send(flags=self.last)

    def call(
        self, model: str, tensors: Sequence[Any], outputs: Sequence[str], request_id: str, *, decoupled: bool
    ) -> Iterator[Any]:
        """Yield the responses of another model.

        Raises:
            EngineError: it answered with one.
        """
        request = self.utils.InferenceRequest(
            model_name=model,
            request_id=request_id,
            requested_output_names=list(outputs),
            inputs=list(tensors),
            parameters={ABORT_SUPPORTED: True, **following()},
        )
        for response in (
            drained(self.held.keep(request.exec(decoupled=True))) if decoupled else [request.exec()]
        ):
            if response.has_error():
                raise EngineError(response.error().message())
            yield response

    def ask(self, model: str, arrays: Arrays, outputs: Sequence[str], request_id: str) -> Arrays:
        """Return the one response of another model; see `call`."""
        (answer,) = self.call(model, tensors_of(self.utils, arrays), outputs, request_id, decoupled=False)
        return arrays_of(answer.output_tensors())

    def engine(
        self, request_id: str, outputs: Sequence[str], arrays: Arrays, *, streaming: bool
    ) -> Iterator[Arrays]:
        """Yield the engine's responses that are not empty, from its unary or decoupled model, whichever fits.

        Raises:
            EngineError: it refused, or failed in the middle.
        """
        model = ENGINE if streaming else ENGINE_UNARY
        for response in self.call(
            model, tensors_of(self.utils, greedy_at_zero(arrays)), outputs, request_id, decoupled=streaming
        ):
            if response.output_tensors():
                yield raise_if_aborted(arrays_of(response.output_tensors()))

    def stop(self, request_id: str, model: str = ENGINE_UNARY) -> None:
        """Stop a request of the engine, as in TensorRT-LLM: `stop` with the same id."""
        one = np.array([[1]], np.int32)
        arrays = {
            "input_ids": one,
            "input_lengths": one,
            "request_output_len": one,
            "stop": np.array([[True]]),
        }
        for _ in self.call(
            model, tensors_of(self.utils, arrays), ALWAYS, request_id, decoupled=model != ENGINE_UNARY
        ):
            pass


def engine_id(request: Any) -> tuple[str, str | None]:
    """Return the id that a request gets in the engine, and the same if it may be stopped by it: a client may
    use one id for several requests.
    """
    given = str(request.request_id())
    own = None if given else uuid.uuid4().hex
    return own or given, own


def row_names(name: str, rows: int) -> list[str]:
    """Return ids for all rows of a request but the first, which has the request's own."""
    return [f"{name}-row{n}" for n in range(1, rows)]
