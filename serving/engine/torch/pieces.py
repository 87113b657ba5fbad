"""Split encoder work into pieces, of which at most one is queued with each decoder step.

Kernels of a step wait for multiprocessors that an encoder's products occupy. A piece starts once the
previously queued step has ended, so no step meets more than one piece. The first piece copies the input to
the device, which delays nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import torch

from .device import Device


class Coming:
    """One encoder's work: `left` pieces are not queued yet; `event` follows the last. If one fails, `error`
    has the reason, and the others are skipped.
    """

    def __init__(self, pieces: Pieces, left: int) -> None:
        self.pieces, self.left = pieces, left
        self.event: Any = None
        self.error: Exception | None = None

    def queue(self) -> None:
        """Queue everything that is left, and everything before it."""
        while self.left and not self.error:
            self.pieces.next()

    def ready(self, *, wait: bool = False) -> bool:
        """Tell whether everything is done, or has failed; with `wait`, block until then."""
        if wait:
            self.queue()
            if self.event is not None:
                self.event.synchronize()
        done = not self.left and (self.event is None or bool(self.event.query()))
        return done or self.error is not None


class Pieces:
    """The work to queue on the encoders' stream, in order."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.waiting: deque[tuple[Callable[[], object], Coming]] = deque()
        self.last: Coming | None = None  # of which all pieces are queued

    @property
    def idle(self) -> bool:
        """Tell whether nothing waits and nothing runs."""
        return not self.waiting and (self.last is None or self.last.ready())

    def add(self, work: Sequence[Callable[[], object]]) -> Coming:
        """Append work."""
        coming = Coming(self, len(work))
        self.waiting.extend((piece, coming) for piece in work)
        return coming

    @torch.inference_mode()
    def next(self, after: Any = None) -> None:
        """Queue one piece, if any is left, to start after the event `after`. A piece that fails fails its own
        work only, since another request's step may have queued it.
        """
        if not self.waiting:
            return
        piece, coming = self.waiting.popleft()
        with self.device.on(self.device.encodes):
            if after is not None:
                self.device.encodes.wait_event(after)
            try:
                piece()
            except Exception as error:  # noqa: BLE001  # see above
                coming.error = error
                self.waiting = deque(each for each in self.waiting if each[1] is not coming)
                return
            coming.left -= 1
            if not coming.left:
                coming.event, self.last = self.device.event(), coming
