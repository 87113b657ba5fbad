"""A bounded thread pool for façades: one thread answers each request, and an exception becomes that request's
error response.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from threading import BoundedSemaphore

from ..errors import QueueFull
from .stub import Request, Sender
from .tracing import follow

PLACES = 256  # requests that wait or run; beyond it 503, so that sound does not pile up in memory
THREADS = 64


class RequestPool:
    """Calls `answer(request, sender)` in threads, and `refuse(sender, error)` for what cannot be answered."""

    def __init__(
        self,
        answer: Callable[[Request, Sender], None],
        refuse: Callable[[Sender, Exception], None],
        places: int = PLACES,
    ) -> None:
        self.answer, self.refuse, self.most = answer, refuse, places
        self.threads = ThreadPoolExecutor(THREADS, "request")
        self.places = BoundedSemaphore(places)

    def submit(self, requests: Iterable[Request]) -> None:
        """Queue a request; never blocks."""
        for request in requests:
            sender = request.get_response_sender()
            if self.places.acquire(blocking=False):
                self.threads.submit(self._serve, request, sender)
            else:
                self.refuse(
                    sender,
                    QueueFull(f"at capacity ({self.most} requests in this instance); retry in a few seconds"),
                )

    def _serve(self, request: Request, sender: Sender) -> None:
        try:
            follow(request)
            if sender.is_cancelled():
                raise RuntimeError("cancelled")
            self.answer(request, sender)
        except Exception as error:  # noqa: BLE001  # the boundary: whatever went wrong is this request's answer
            self.refuse(sender, error)
        finally:
            self.places.release()

    def close(self) -> None:
        """Start no more requests."""
        self.threads.shutdown(wait=False, cancel_futures=True)
