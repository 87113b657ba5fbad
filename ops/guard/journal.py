"""Events of a guard, for operators who look at the instance; the log has them, too, and keeps them longer."""

from __future__ import annotations

import time
from collections import deque
from typing import Any

import structlog

log = structlog.get_logger()
KEPT = 100


class Journal:
    """The latest events of one guard, oldest first. `time` is Unix time in seconds."""

    def __init__(self, instance: str) -> None:
        self.instance = instance
        self.events: deque[dict[str, Any]] = deque(maxlen=KEPT)

    def note(self, event: str, *, error: bool = False, **fields: Any) -> None:
        """Keep an event and log it."""
        self.events.append({"time": round(time.time(), 3), "event": event, "error": error, **fields})
        (log.error if error else log.info)(event, instance=self.instance, **fields)
