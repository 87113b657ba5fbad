"""Send responses on a thread of their own."""

from __future__ import annotations

from collections.abc import Callable
from queue import Queue
from threading import Thread

WAITING = 256  # responses at most; a caller with more of them waits


class Sending:
    """Sends in order. A message to Triton takes some tenths of a millisecond; meanwhile the engine computes
    its next step.
    """

    def __init__(self) -> None:
        self.queue: Queue[Callable[[], None] | None] = Queue(WAITING)
        self.thread = Thread(target=self._run, name="responses", daemon=True)
        self.thread.start()

    def put(self, send: Callable[[], None]) -> None:
        """Queue a call that sends and raises nothing."""
        self.queue.put(send)

    def close(self) -> None:
        """Send what is queued, and end the thread."""
        self.queue.put(None)
        self.thread.join()

    def _run(self) -> None:
        while send := self.queue.get():
            send()
            del send  # it holds a request
