"""A Triton model that answers from a bounded pool of threads: a request that waits for the engine never
blocks another, and an exception becomes that request's error response.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from threading import BoundedSemaphore

from conch.names import ENGINE_UNARY

from ..errors import QueueFull, message_of
from .calls import BlsClient
from .stub import Request, Sender, Utils
from .tracing import follow
from .watch import Watch

THREADS = 64


class ThreadedEndpoint(ABC):
    """`calls` reaches callers and other models; `watch` stops requests whose clients have gone; `encode`
    makes an error's text.
    """

    most = 256  # requests that wait or run; beyond it 503, so that sound does not pile up in memory

    def __init__(self, utils: Utils, encode: Callable[[Exception], str] = message_of) -> None:
        self.calls, self.watch = BlsClient(utils, encode), Watch()
        self.threads = ThreadPoolExecutor(THREADS, "request")
        self.places = BoundedSemaphore(self.most)

    @abstractmethod
    def answer(self, request: Request, sender: Sender) -> None:
        """Answer one request in its own thread; an exception becomes its error.

        Raises:
            ValueError: it cannot be served.
            EngineError: the engine refused, or failed.
        """

    def execute(self, requests: Iterable[Request]) -> None:
        """Queue requests; never blocks."""
        for request in requests:
            sender = request.get_response_sender()
            if self.places.acquire(blocking=False):
                self.threads.submit(self._serve, request, sender)
            else:
                full = f"at capacity ({self.most} requests in this instance); retry in a few seconds"
                self.calls.refuse(sender, QueueFull(full))

    def _serve(self, request: Request, sender: Sender) -> None:
        try:
            follow(request)
            if sender.is_cancelled():
                raise RuntimeError("cancelled")
            self.answer(request, sender)
        except Exception as error:  # noqa: BLE001  # the boundary: whatever went wrong is this request's answer
            self.calls.refuse(sender, error)
        finally:
            self.places.release()

    def stopping(
        self, sender: Sender, names: Iterable[str], model: str = ENGINE_UNARY
    ) -> AbstractContextManager[None]:
        """Stop the engine's requests `names` if the client leaves while the block runs; see Watch.over."""

        def stop() -> None:
            for name in names:
                self.calls.stop(name, model)

        return self.watch.over(sender, stop)

    def close(self) -> None:
        """Stop when the model is unloaded; no more requests start."""
        self.threads.shutdown(wait=False, cancel_futures=True)
        self.calls.close()
