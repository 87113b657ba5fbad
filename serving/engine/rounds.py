"""Share an encoder among requests: rows of several are computed together, in rounds so short that a small
request does not wait until a large one has ended.
"""

from __future__ import annotations

import heapq
import threading
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from numpy.typing import NDArray

from ..errors import QueueFull

# Seconds that a request yields to smaller ones that come later: for each round that it takes, and at most.
YIELDS, LONGEST = 30.0, 60.0
MOST_BYTES = 1 << 30  # of rows that wait
FULL = QueueFull("at capacity: 1 GiB of inputs wait for this encoder; retry in a few seconds")
STOPPING = RuntimeError("the server is stopping")
# A round that costs this part of the most is not filled up with rows that cost so many times as much as its
# first: it would take them long to compute.
ENOUGH, UNLIKE = 0.125, 2


@dataclass(eq=False)
class Work:
    """The rows of one request and what each of them costs. `finish` gets their results, in order; `fail` what
    went wrong. Neither raises.
    """

    rows: Sequence[NDArray[Any]]
    costs: Sequence[float]
    finish: Callable[[list[NDArray[Any]]], None]
    fail: Callable[[Exception], None]
    left: list[int] = field(init=False)
    size: int = field(init=False)
    results: dict[int, NDArray[Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        # Rows that cost about the same are computed together; those that cost least are taken first.
        self.left = sorted(range(len(self.rows)), key=lambda row: -self.costs[row])
        self.size = sum(row.nbytes for row in self.rows)


class Rounds:
    """A thread that computes what is submitted. `compute` returns a result for each row; a round costs at
    most `most`, or is one row.
    """

    def __init__(
        self, compute: Callable[[Sequence[NDArray[Any]]], Iterable[NDArray[Any]]], most: float
    ) -> None:
        self.compute, self.most = compute, most
        self.waiting: list[tuple[float, int, Work]] = []
        self.numbers, self.wake, self.closed, self.size = count(), threading.Condition(), False, 0
        self.thread = threading.Thread(target=self._run, name="encoder", daemon=True)
        self.thread.start()

    def submit(self, works: Sequence[Work]) -> None:
        """Queue requests that came together, each of one row at least; never blocks. With too many bytes of
        rows one fails with QueueFull.
        """
        now = time.monotonic()
        with self.wake:
            for work in works:
                if self.closed or self.size + work.size > MOST_BYTES:
                    work.fail(STOPPING if self.closed else FULL)
                    continue
                self.size += work.size
                due = now + min(LONGEST, YIELDS * sum(work.costs) / self.most)
                heapq.heappush(self.waiting, (due, next(self.numbers), work))
            self.wake.notify()

    def close(self) -> None:
        """End the thread after its round; what waits fails."""
        with self.wake:
            self.closed = True
            self.wake.notify()
        self.thread.join()
        while self.waiting:
            _, _, work = self.waiting.pop()
            work.fail(STOPPING)

    def _run(self) -> None:
        while chosen := self._next():
            self._round(chosen)
            chosen.clear()  # an idle thread keeps no request

    def _round(self, chosen: Sequence[tuple[Work, int]]) -> None:
        works = {work for work, _ in chosen}
        try:
            found = self.compute([work.rows[row] for work, row in chosen])
            for (work, row), result in zip(chosen, found, strict=True):
                work.results[row] = result
        except Exception as error:  # noqa: BLE001  # it is the answer to those that it was computed for
            self._drop(works)
            for work in works:
                work.fail(error)
            return
        ended = [work for work in works if len(work.results) == len(work.rows)]
        self._drop(ended)
        for work in ended:
            work.finish([work.results[row] for row in range(len(work.rows))])

    def _next(self) -> list[tuple[Work, int]]:
        """Wait for requests and return the rows of the next round; none after `close`."""
        chosen, spent, first = list[tuple[Work, int]](), 0.0, 0.0
        with self.wake:
            self.wake.wait_for(lambda: self.waiting or self.closed)
            while self.waiting and not self.closed:
                work = self.waiting[0][2]
                cost = work.costs[work.left[-1]]
                unlike = cost > UNLIKE * first and spent >= ENOUGH * self.most
                if chosen and (unlike or spent + cost > self.most):
                    break
                chosen.append((work, work.left.pop()))
                first, spent = first or cost, spent + cost
                if not work.left:
                    heapq.heappop(self.waiting)
        return chosen

    def _drop(self, works: Collection[Work]) -> None:
        with self.wake:
            self.size -= sum(work.size for work in works)
            if any(work.left for work in works):  # of a round that failed
                self.waiting = [entry for entry in self.waiting if entry[2] not in works]
                heapq.heapify(self.waiting)
