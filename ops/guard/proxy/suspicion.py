"""Which requests may have crashed a server, and which are known not to.

A request is identified by a fingerprint of its model and content, without its id: sending it again gives the
same one.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Iterable
from hashlib import blake2b

SAMPLE = 64 << 10
REFUSED_SECONDS = 60.0
SUSPECT_SECONDS = 120.0  # it waits for its server, then runs alone, a minute each at most
KNOWN = 4096


def fingerprint(model: str, parts: Iterable[bytes | memoryview]) -> str:
    """Compute it from the model's name and every part: its length, its first and its last 64 KiB."""
    digest = blake2b(model.encode(), digest_size=16)
    for part in parts:
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part[:SAMPLE])
        if len(part) > SAMPLE:
            digest.update(part[-SAMPLE:])
    return digest.hexdigest()


class Suspicion:
    """Fingerprints that are quarantined for a while, and those that were answered here."""

    def __init__(self) -> None:
        self._until: dict[str, float] = {}
        self._answered: OrderedDict[str, None] = OrderedDict()

    @property
    def any(self) -> bool:
        """Tell whether a fingerprint is worth computing before a request is run."""
        return bool(self._until)

    def refused(self, mark: str) -> float:
        """Return the seconds for which a request is still quarantined; 0 if it is not."""
        now = time.monotonic()
        self._until = {one: until for one, until in self._until.items() if until > now}
        return max(0.0, self._until.get(mark, 0) - now)

    def refuse(self, mark: str, seconds: float) -> None:
        """Quarantine a request from now on."""
        self._until[mark] = time.monotonic() + seconds
        self._answered.pop(mark, None)

    def clear(self, mark: str) -> None:
        """Note that it was answered, so it crashes no server."""
        self._until.pop(mark, None)
        self._answered[mark] = None
        self._answered.move_to_end(mark)
        if len(self._answered) > KNOWN:
            self._answered.popitem(last=False)

    def innocent(self, mark: str) -> bool:
        """Tell whether the same request has been answered here before."""
        return mark in self._answered
