"""One scheduler for every family: requests join and leave the running batch between two tokens.

`admit` takes waiting requests (their encoders run then), `step` makes one token for every row, `release`
removes finished and cancelled requests. One thread calls them in turn, so a long request never blocks a short
one.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from math import isfinite

from ..errors import BadRequest, QueueFull
from .admission import BatchQueue
from .jobs import DEFAULTS, Job, Limits
from .leaving import Leaving
from .runtime import Runtime, Step
from .sampling import Scores
from .strategies import Single
from .tracing import Spans

MEASURE_SECONDS = 0.1  # between two looks at how full the batch is
LOOK_SECONDS = 0.02  # between two checks for requests that were stopped or whose clients have left


class Scheduler(BatchQueue):
    """Runs jobs on one engine."""

    def __init__(self, runtime: Runtime, limits: Limits = DEFAULTS) -> None:
        super().__init__(runtime, limits)
        self.last: Step | None = None
        self.spans, self.measured, self.looked = Spans(), 0.0, 0.0
        self.made = 0  # tokens that the metrics do not count yet
        self.metrics.rows_most.set(limits.max_rows)
        self.stopping = False
        self.leaving = Leaving()
        self.thread = threading.Thread(target=self._run, name="scheduler", daemon=True)
        self.answering, self.sending = ThreadPoolExecutor(1, "answers"), list[Job]()

    def start(self) -> None:
        """Start the thread."""
        self.thread.start()

    def stop(self) -> None:
        """End the thread; waiting and running requests fail."""
        with self.wake:
            self.stopping = True
            self.wake.notify()
        self.thread.join()
        self.answering.shutdown()

    def submit(self, job: Job) -> None:
        """Queue a request.

        Raises:
            QueueFull: `limits.max_queue` requests wait already.
            BadRequest: prompt and max_tokens do not fit, or too many beams.
        """
        job.check(self.runtime.facts, self.limits)
        if job.source is not None:
            job.source = self.runtime.prepare(job.source)
        with self.wake:
            if self.stopping or (self.thread.ident and not self.thread.is_alive()):
                raise RuntimeError("the engine has stopped")
            if len(self.waiting) >= self.limits.max_queue:
                raise QueueFull(
                    f"at capacity (queue of {len(self.waiting)} requests); retry in a few seconds"
                )
            job.came = time.monotonic()
            self.waiting.append(job)
            self.wake.notify()

    def drop(self, request_id: str) -> None:
        """Stop every request of this id, see `Leaving.stop`."""
        with self.wake:
            there = (*self.waiting, *self.admitting, *self.encoding, *self.running, *self.sending)
            self.leaving.stop(request_id, there, time.monotonic())
            self.wake.notify()

    def _run(self) -> None:
        while True:
            self._measure()
            if not self.running:
                self.last = None  # its rows would keep their memories
            with self.wake:
                self.wake.wait_for(lambda: self.stopping or self.waiting or self.encoding or self.running)
                if self.stopping:
                    break
            self._look()
            # Before the next are encoded: the encoder need not wait for a step. But where some begin, their
            # prompts are read first: while an encoder runs that takes a GPU three times as long.
            joined = self.begin(wait=False)
            if not joined:
                self._admit()
                self.begin()
            if self.running:
                self.step()
            if joined:
                self._admit()
        for job in [*self.running, *self.encoding, *self.waiting]:
            job.listener.fail(RuntimeError("the server is stopping"))

    def _admit(self) -> None:
        self.admit(self.limits.join_at_once if self.running else self.limits.max_rows)

    def _look(self) -> None:
        """Check which requests were stopped and which clients have left, now and then: before each step it
        would take as long as the step.
        """
        now = time.monotonic()
        if not self.running or now - self.looked >= LOOK_SECONDS:
            self.looked = now
            self.release_cancelled()

    def _measure(self) -> None:
        """Update metrics now and then, and always before waiting: on a GPU a step takes a third of a
        millisecond.
        """
        now = time.monotonic()
        if self.running and now - self.measured < MEASURE_SECONDS:
            return
        self.measured = now
        self._count_tokens()
        rows = [(len(job.rows), job.position) for job in self.running]
        room = self.limits.max_rows * self.runtime.facts.positions
        self.metrics.waiting.set(len(self.waiting))
        self.metrics.rows.set(sum(count for count, _ in rows))
        self.metrics.cache.set(sum(count * position for count, position in rows) / room)

    def _count_tokens(self) -> None:
        self.metrics.made.inc(self.made)
        self.made = 0

    def step(self) -> None:
        """Make one token for every row of every running request."""
        rows = [row for job in self.running for row in job.rows]
        try:
            result = self.last = self.batch.step(rows)
        except Exception as error:  # noqa: BLE001  # the batch is lost, the server is not
            self._lose_all(error)
            return
        at, finished = 0, []
        best, log_probs = result.best.tolist(), result.best_log_prob.tolist()
        for job in list(self.running):
            job.first_row, count = at, len(job.rows)
            if job.reading or best[at] < 0:
                job.read_on(at, self._prefill)
                at += 1
                continue
            try:
                if not all(map(isfinite, log_probs[at : at + count])):
                    raise BadRequest(
                        "the model gave no finite probabilities for this input; check features, prompt and "
                        "embedding_bias"
                    )
                if isinstance(job.strategy, Single) and job.choice is not None:
                    goes_on = job.strategy.take(best[at], log_probs[at])
                    self._advance(job, [(0, best[at])] if goes_on else [])
                else:
                    scores = [self._scores(job, result, row) for row in range(at, at + count)]
                    self._advance(job, job.strategy.advance(scores))
                if not job.rows:
                    self._look_back(job)
            except Exception as error:  # noqa: BLE001  # one request's failure is its own
                job.rows = []
                self.running.remove(job)
                job.listener.fail(error)
            else:
                if not job.rows:
                    finished.append(job)
            at += count
        self.release(finished)

    @staticmethod
    def _scores(job: Job, result: Step, row: int) -> Scores:
        looked = partial(result.attention, row, job.steps + 1) if job.attend and result.attention else None
        return Scores(partial(result.logits, row), looked)

    def _advance(self, job: Job, chosen: Sequence[tuple[int, int]]) -> None:
        """Set its rows of the next step from (row of this one, token) pairs."""
        if not job.begun:
            job.begun = time.monotonic()
            self.metrics.first.observe(job.begun - job.came)
        job.reads, job.rows = 0, [job.row(job.first_row + parent, (token,)) for parent, token in chosen]
        job.position += 1
        self.made += 1
        if job.streaming and job.rows:
            job.listener.update(job.strategy.results())

    def _look_back(self, job: Job) -> None:
        """Return the cross-attention of a job that makes no further step, if requested."""
        if job.attend and job.steps and self.last and self.last.attention:
            row = (job.rows[0].parent or 0) if job.rows else job.first_row
            job.seen = job.strategy.results()[0].seen or self.last.attention(row, job.steps)

    def release(self, jobs: Sequence[Job]) -> None:
        """Answer finished requests and free their rows. The last request moves into a hole of its size, so
        that fewer caches are copied.
        """
        for job in jobs:
            at = self.running.index(job)
            if self.running[-1] is not job and len(self.running[-1].rows) == 1 == job.sampling.beam_width:
                self.running[at] = self.running.pop()
            else:
                self.running.pop(at)
            self._count(job)
            self._finish(job)

    def _finish(self, job: Job) -> None:
        """Send its answer. Answers with megabytes of cross-attention are sent while the next steps run."""
        self.leaving.end(job.request_id, time.monotonic())
        if job.seen is None:
            self._answer(job)
            return
        with self.wake:
            self.sending.append(job)
        self.answering.submit(self._send, job)

    def _send(self, job: Job) -> None:
        self._answer(job)
        with self.wake:
            self.sending.remove(job)

    @staticmethod
    def _answer(job: Job) -> None:
        try:
            job.listener.finish(job.strategy.results())
        except Exception as error:  # noqa: BLE001  # the answer could not be made or sent; others go on
            job.listener.fail(error)

    def _count(self, job: Job) -> None:
        made, now = job.steps, time.monotonic()
        self._count_tokens()
        if made > 1:
            self.metrics.token.observe((now - job.begun) / (made - 1))
        steps = {
            "queue": (job.came, job.admitted),
            "encode": (job.admitted, job.joined),
            "first token": (job.joined, job.begun),
            "tokens": (job.begun, now),
        }
        self.spans.note(job.trace, steps, tokens=made, read=len(job.prompt))

    def release_cancelled(self) -> None:
        """Drop cancelled requests. Their rows are freed before their listeners are told."""
        with self.wake:
            there = (*self.running, *self.encoding, *self.waiting)
            leaving = self.leaving.of(there, time.monotonic())
            if not leaving:
                return
            gone = {id(job) for job in leaving}
            self.running = [job for job in self.running if id(job) not in gone]
            self.encoding = deque(job for job in self.encoding if id(job) not in gone)
            self.waiting = deque(job for job in self.waiting if id(job) not in gone)
        for job in leaving:
            self._tell_dropped(job)

    def _tell_dropped(self, job: Job) -> None:
        if job.listener.cancelled():
            job.listener.fail(RuntimeError("cancelled"))
        else:  # as TensorRT-LLM's executor does: the answer is what there is so far
            try:
                self._look_back(job)
            except Exception as error:  # noqa: BLE001  # one request's failure is its own
                job.listener.fail(error)
            else:
                self._finish(job)

    def _lose_all(self, error: Exception) -> None:
        for job in self.running:
            job.listener.fail(error)
        self.running = []
        self.batch = self.runtime.batch()
