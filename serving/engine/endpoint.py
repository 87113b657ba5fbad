"""The engine model of a portable target: turns Triton's requests into jobs of a scheduler, and results into
Triton's responses.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from ..errors import ABORT_SUPPORTED, encode_error, message_of
from ..triton.stub import arrays_of, failure_of, response_of
from .answers import Answers
from .guidance import Guides
from .inputs import parse, stops
from .jobs import Limits
from .runtime import Runtime
from .sampling import Hypothesis
from .scheduler import Scheduler


class EngineReply:
    """A scheduler's listener that answers one request through Triton. The thread of `sending` sends the
    responses of a stream, but for one with logits, whose responses would grow large. `pb` is
    triton_python_backend_utils.
    """

    def __init__(self, request: Any, pb: Any, sending: Executor) -> None:
        self.pb, self.final = pb, pb.TRITONSERVER_RESPONSE_COMPLETE_FINAL
        self.sending, self.sender = sending, request.get_response_sender()
        self.names = set(request.requested_output_names())
        self.aborts = ABORT_SUPPORTED in request.parameters()
        self.answers: Answers | None = None
        self.latest: list[Hypothesis] = []
        self.begun = self.queued = False
        self.lost = ""  # why a response could not be made or sent

    def cancelled(self) -> bool:
        return bool(self.sender.is_cancelled())

    def update(self, beams: list[Hypothesis]) -> None:
        """See Listener. A response takes longer to send than a step of a GPU: tokens that are made meanwhile
        are sent together.
        """
        if self.lost:
            raise RuntimeError(self.lost)
        self.latest = beams
        if not self.queued:
            self.queued = True
            self._call(self._grow)

    def _grow(self) -> None:
        self.queued = False
        self._send(self._grown)

    def _grown(self) -> Any:
        arrays = self.answers.update(self.latest) if self.answers else None
        if arrays is None:
            return None
        self.begun = True
        return self._response(arrays)

    def finish(self, beams: list[Hypothesis]) -> None:
        assert self.answers
        answers = self.answers  # dropped once the response is sent
        self._last(lambda: self._response(answers.finish(beams)))

    def fail(self, error: Exception) -> None:
        self._last(partial(self._failure, error))

    def end(self) -> None:
        """End the response stream."""
        self.sender.send(flags=self.final)

    def _last(self, make: Callable[[], Any]) -> None:
        self._call(partial(self._close, make))

    def _call(self, send: Callable[[], None]) -> None:
        if self.answers and self.answers.job.streaming and not self.answers.job.sampling.keep_logits:
            self.sending.submit(send)
        else:
            send()

    def _close(self, make: Callable[[], Any]) -> None:
        """Send the last response and drop the reference cycle of answers, job and listener: otherwise the
        job, with its encoder output, would stay until Python collects cycles.
        """
        self._send(make, self.final)
        self.answers = None

    def _send(self, make: Callable[[], Any], flags: int = 0) -> None:
        """Make a response, if there is something to send, and send it. After one that could not be made or
        sent, only its error is sent, as the last response.
        """
        try:
            if not self.lost and (response := make()) is not None:
                self.sender.send(response, flags)
        except Exception as error:  # noqa: BLE001  # the boundary: what went wrong is this request's answer
            self.lost = message_of(error)
        if self.lost and flags:
            with suppress(Exception):  # Triton has closed a sender whose last response could not be sent
                self.sender.send(self._failure(RuntimeError(self.lost)), flags)

    def _failure(self, error: Exception) -> Any:
        """Make the response of an error. Callers that say so are told by a marker after what has been sent:
        Triton loses an error after other responses (docs/decisions/0002-two-faces.md).
        """
        if self.begun and self.aborts:
            return self._response(Answers.aborted())
        return failure_of(self.pb, error, encode_error(error))

    def _response(self, arrays: Mapping[str, NDArray[Any]]) -> Any:
        return response_of(self.pb, arrays, self.names or arrays)


class Endpoint:
    """The engine model of one bundle. `parameters` are the bundle's; `engine` is the folder of its tokenizer,
    without which no grammar can be followed.
    """

    def __init__(
        self, runtime: Runtime, parameters: Mapping[str, Any], pb: Any, engine: Path | None = None
    ) -> None:
        self.runtime, self.pb = runtime, pb
        self.guides = Guides(engine, runtime.facts) if engine else None
        self.exclude_prompt = bool(parameters.get("exclude_input_in_output"))
        self.scheduler = Scheduler(runtime, Limits.of(parameters))
        self.sending = ThreadPoolExecutor(1, "responses")
        # What is there now stays: collections that look at all of it hold up every request.
        gc.collect()
        gc.freeze()
        self.scheduler.start()

    def execute(self, requests: Iterable[Any]) -> None:
        """Queue requests; never blocks."""
        for request in requests:
            reply = EngineReply(request, self.pb, self.sending)
            try:
                self._take(request, reply)
            except Exception as error:  # noqa: BLE001  # the boundary: what went wrong is this request's answer
                reply.fail(error)

    def _take(self, request: Any, reply: EngineReply) -> None:
        inputs = arrays_of(request.inputs())
        name = request.request_id()
        if stops(inputs, name):
            self.scheduler.drop(name)
            reply.end()
            return
        job = parse(
            inputs, reply, self.runtime.facts, name, exclude_prompt=self.exclude_prompt, guides=self.guides
        )
        reply.answers = Answers(job)
        job.trace = self.scheduler.spans.parent(request)
        self.scheduler.submit(job)

    def close(self) -> None:
        """End the scheduler and send what is queued. Jobs and replies reference each other, and a sender that
        is freed after the stub's shared memory crashes the stub.
        """
        self.scheduler.stop()
        self.sending.shutdown()
        self.scheduler.spans.close()
        self.runtime.close()
        gc.collect()
