"""Limit concurrent requests. One too many is refused at once with Retry-After, so that admitted ones keep
their pace.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from math import ceil

from conch.deployment import Pool
from conch.errors import ApiError

LONGEST_RETRY = 30


class Admission:
    """Places in each pool: `per_instance` for each of its instances, or if that is 0 as many as its engine
    has rows, at most `most`; in `gateways` processes like this one. `what` says in errors what uses them.
    """

    def __init__(self, per_instance: int, what: str, gateways: int = 1, most: int = 64) -> None:
        self.per_instance, self.what, self.gateways, self.most = per_instance, what, gateways, most
        self.inside: Counter[str] = Counter()
        self.usual: dict[str, float] = {}

    def places(self, pool: Pool) -> int:
        """Return how many there are in a pool."""
        each = self.per_instance or min(pool.rows, self.most)
        return max(1, ceil(each * len(pool.instances) / self.gateways))

    @contextmanager
    def place(self, pool: Pool, wanted: int = 1) -> Iterator[None]:
        """Take a place for one request, or `wanted` places for one that is as much work; at most half of all,
        so that it can always get them.

        Raises:
            ApiError: 503 with Retry-After if they are taken.
        """
        places = self.places(pool)
        wanted = min(wanted, max(1, places // 2))
        if self.inside[pool.model_id] + wanted > places:
            retry = min(LONGEST_RETRY, max(1, ceil(self.usual.get(pool.model_id, 1.0))))
            message = f"at capacity ({places} {self.what} at this gateway); retry in {retry} s"
            raise ApiError(503, message, code="overloaded", retry_after=retry)
        self.inside[pool.model_id] += wanted
        started = time.monotonic()
        try:
            yield
        finally:
            self.inside[pool.model_id] -= wanted
            before = self.usual.get(pool.model_id, 1.0)
            self.usual[pool.model_id] = 0.9 * before + 0.1 * (time.monotonic() - started)
