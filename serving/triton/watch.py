"""Stop what the engine generates for a request whose client has gone."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from .stub import Sender

PERIOD = 0.2  # seconds between two looks


class Watch:
    """One thread that watches all requests of a model. Triton does not report that a client has gone; it must
    be asked.
    """

    def __init__(self, period: float = PERIOD) -> None:
        self.period = period
        self.open: dict[int, tuple[Sender, Callable[[], None]]] = {}
        self.changed = threading.Condition()
        threading.Thread(target=self._run, name="watch", daemon=True).start()

    @contextmanager
    def over(self, sender: Sender, stop: Callable[[], None]) -> Iterator[None]:
        """Call `stop`, once, if the client leaves while the block runs. The block must not send the last
        response: asking after it crashes tritonserver 24.10 (TRITONBACKEND_ResponseFactoryIsCancelled on a
        freed factory).
        """
        key = id(sender)
        with self.changed:
            self.open[key] = sender, stop
            self.changed.notify()
        try:
            yield
        finally:
            with self.changed:
                self.open.pop(key, None)

    def _run(self) -> None:
        while True:
            with self.changed:
                self.changed.wait_for(lambda: self.open)  # an idle model costs nothing
            time.sleep(self.period)
            with self.changed:
                gone = [key for key, (sender, _) in self.open.items() if sender.is_cancelled()]
                stops = [self.open.pop(key)[1] for key in gone]
            for stop in stops:
                try:
                    stop()
                except Exception as error:  # noqa: BLE001  # the request ends by itself then, later
                    print(f"watch: a request whose client left could not be cancelled: {error!r}", flush=True)
