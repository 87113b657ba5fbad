"""Requests that were stopped, and clients that have left."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import nsmallest

from .jobs import Job

# A request may come a little after the word that stops it; later its id may be another's.
STOPPED_SECONDS = 10.0
# Between two questions whether a client is there, and how many are asked for in one look: Triton is asked by
# a message, which takes up to a millisecond of a busy CPU, and no step runs meanwhile.
ASK_SECONDS, ASKED_AT_ONCE = 0.5, 8


class Leaving:
    """Ids of requests that were stopped before they came, and of those that have ended, with the time until
    when either counts. Times are of time.monotonic().
    """

    def __init__(self) -> None:
        self.stopped: dict[str, float] = {}
        self.ended: dict[str, float] = {}

    def stop(self, request_id: str, jobs: Sequence[Job], now: float) -> None:
        """Stop every one of `jobs` with this id, or, if there is none and none has just ended, the next that
        arrives under it within STOPPED_SECONDS. A client may reuse an id at once.
        """
        found = [job for job in jobs if job.request_id == request_id]
        for job in found:
            job.stopped = True
        self.stopped = {name: until for name, until in self.stopped.items() if until > now}
        if not found and self.ended.get(request_id, 0.0) <= now:
            self.stopped[request_id] = now + STOPPED_SECONDS

    def end(self, request_id: str, now: float) -> None:
        """Note that a request has ended: a word that stops it and comes too late is not for the next."""
        self.ended.pop(request_id, None)
        self.ended[request_id] = now + STOPPED_SECONDS
        while self.ended[first := next(iter(self.ended))] <= now:
            del self.ended[first]

    def of(self, jobs: Sequence[Job], now: float) -> list[Job]:
        """Return those that were stopped or whose clients have left; a few clients are asked for."""
        for job in jobs:
            if self.stopped.get(job.request_id, 0.0) > now:
                del self.stopped[job.request_id]
                job.stopped = True
        due = nsmallest(ASKED_AT_ONCE, jobs, key=lambda job: job.asked)
        left = {id(job) for job in due if self._left(job, now)}
        return [job for job in jobs if job.stopped or id(job) in left]

    @staticmethod
    def _left(job: Job, now: float) -> bool:
        if now - job.asked < ASK_SECONDS:
            return False
        job.asked = now
        return job.listener.cancelled()
