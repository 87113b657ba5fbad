"""Which requests join the running batch, when, and how much of their prompts is read with each step."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Sequence

from .jobs import Job, Limits
from .metrics import EngineMetrics
from .runtime import Memory, Runtime

ALONE = 8  # times as many ids of prompts are read at once where no text waits for them
# Seconds that a prompt yields to shorter ones that come later: for each id that must be read, and at most.
YIELDS, LONGEST = 0.01, 30.0


class BatchQueue:
    """Requests on their way into the running batch."""

    def __init__(self, runtime: Runtime, limits: Limits) -> None:
        self.runtime, self.limits = runtime, limits
        self.waiting: deque[Job] = deque()
        self.admitting: list[Job] = []  # on their way from `waiting` to `encoding`
        self.encoding: deque[Job] = deque()
        self.running: list[Job] = []
        self.batch = runtime.batch()
        self.metrics = EngineMetrics()
        self.wake = threading.Condition()

    def admit(self, most: int = 1) -> None:
        """Admit up to `most` waiting requests whose rows fit and encode them together, once no other is being
        encoded: more may have arrived by then, and a small batch takes nearly as long as a large one. With
        `most` fitting requests it does not wait, so that there is always something to encode.
        """
        if not self.runtime.facts.encodes:
            with self.wake:  # a shorter prompt may have come
                self.waiting.extend(self.encoding)
                self.encoding.clear()
        if self.encoding and not len(self.encoding) <= most <= min(len(self.waiting), self._free):
            return
        jobs = self._fitting(most)
        sources = [job for job in jobs if job.source is not None]
        try:
            for job, memory in zip(sources, self._encoded(sources), strict=True):
                job.memory = memory
        except Exception:  # noqa: BLE001  # whose fault it is shows when each is encoded alone
            jobs = [job for job in jobs if job.source is None or self._encodes(job)]
        self.encoding.extend(jobs)
        self.admitting = []

    def begin(self, *, wait: bool = True) -> bool:
        """Start requests whose inputs have been encoded; if nothing runs, `wait` for the first. Returns
        whether any was started.
        """
        begun, most, read = False, self._prefill, 0
        reading = next((job for job in self.running if job.reads), None)
        while self.encoding:
            job = min(self.encoding, key=self._due)
            memory, known = job.memory, self._known(job)
            prompt = len(job.prompt) - known
            if memory is not None and not memory.ready(wait=wait and not self.running):
                break
            share, taken = most, read + (reading.reads if reading else 0)
            if most and taken and taken + prompt > most:  # one long prompt is read at a time
                share = self._make_room(job, prompt, most - taken, reading)
                if not share and read + prompt > most:
                    if read or not (reading and self._pauses(reading, job, prompt)):
                        break
                    reading = None
                share = share or most
            self.encoding.remove(job)
            self._begin(job, share, known)
            begun, read = begun or job in self.running[-1:], read + prompt
            if most and (reading or share < most):  # on a GPU each is a pass of its own
                break
        return begun

    def _make_room(self, job: Job, prompt: int, room: int, reading: Job | None) -> int:
        """Make room in the next step for a prompt, of which so many ids must be read, and return for how
        many: `room` next to the end of another prompt, or, for a short one, a part of what is read of a long
        one. The device must choose all rows' ids: otherwise a GPU reads each in a pass of its own.
        """
        if job.table is not None or not (all(one.choice for one in self.running) and self._chooses(job)):
            return 0
        if reading and reading.reading:
            if not 0 < 2 * prompt <= reading.reads:
                return 0
            reading.read_less(prompt)
            return prompt
        return max(0, room)

    def _pauses(self, reading: Job, other: Job, prompt: int) -> bool:
        """Let another prompt, with so many ids to read, be read first if it should be and what is read of the
        first stays cached.
        """
        left = len(reading.prompt) - reading.position
        if other.due >= reading.due or prompt >= left or not self._known(reading):
            return False
        self.running.remove(reading)
        self.encoding.append(reading)
        reading.position, reading.reads, reading.rows = 0, 0, []
        return True

    def _known(self, job: Job) -> int:
        """Return how many ids of a prompt are cached."""
        return 0 if job.table is not None else self.batch.known(job.prompt)

    @property
    def _prefill(self) -> int:
        """Return how many prompt ids are read before the next step of all rows; 0 for all. A small number
        keeps running requests from waiting; if nothing runs, larger pieces are faster.
        """
        few = self.limits.prefill_tokens
        if few and self.runtime.facts.encodes:
            return 0
        return few if any(not job.reads for job in self.running) else few * ALONE

    def _fitting(self, most: int) -> list[Job]:
        """Return up to `most` whose rows fit."""
        with self.wake:
            jobs, free = list[Job](), self._free
            if free:
                self.waiting = deque(sorted(self.waiting, key=self._due))
            while self.waiting and len(jobs) < most and self.waiting[0].sampling.beam_width <= free:
                jobs.append(self.waiting.popleft())
                free -= jobs[-1].sampling.beam_width
            self.admitting = jobs
        for job in jobs:
            if not job.admitted:
                job.admitted = time.monotonic()
                self.metrics.queue.observe(job.admitted - job.came)
        return jobs

    def _due(self, job: Job) -> float:
        """Return the time by which requests join: a prompt's own is later the more of it must be read."""
        if not job.due:
            unread = 0 if self.runtime.facts.encodes else len(job.prompt) - self._known(job)
            job.due = job.came + min(LONGEST, YIELDS * unread)
        return job.due

    @property
    def _free(self) -> int:
        """Return the number of rows that are neither used nor reserved."""
        return self.limits.max_rows - sum(job.sampling.beam_width for job in (*self.running, *self.encoding))

    def _encoded(self, jobs: Sequence[Job]) -> Sequence[Memory]:
        return self.runtime.encode([job.source for job in jobs if job.source is not None]) if jobs else ()

    def _encodes(self, job: Job) -> bool:
        """Encode one input; an exception fails this request alone."""
        try:
            (job.memory,) = self._encoded([job])
        except Exception as error:  # noqa: BLE001  # see above
            job.listener.fail(error)
            return False
        return True

    def _begin(self, job: Job, most: int, known: int) -> None:
        """Start a job. `most` is the number of prompt ids that the next step reads, 0 for all; the first
        `known` are cached.
        """
        again, job.joined = job.joined > 0.0, time.monotonic()
        if job.memory is not None and job.memory.failed is not None:
            job.listener.fail(job.memory.failed)
            return
        if job.source is not None:
            self.metrics.encode.observe(job.joined - job.admitted)
        job.source = None  # it has been read
        job.choice = job.sampling if self._chooses(job) else None
        job.read(None, 0 if job.table is not None else most, known)
        job.table = None  # its row has it
        if not again:
            self.metrics.cached.inc(known)
            self.metrics.read.inc(len(job.prompt) - known)
        self.running.append(job)

    def _chooses(self, job: Job) -> bool:
        return job.guide is None and self.runtime.chooses(job.sampling)
