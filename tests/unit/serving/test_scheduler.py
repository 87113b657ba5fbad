"""The order in which the scheduler asks an engine whose encoders run alongside its steps."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from serving.engine.answers import Answers
from serving.engine.collected import Collected
from serving.engine.endpoint import EngineReply
from serving.engine.jobs import Job, Limits
from serving.engine.runtime import Looked, Row, RunningBatch, Step
from serving.engine.sampling import Sampling
from serving.engine.scheduler import Scheduler
from serving.errors import BadRequest
from tests.fakes.triton_python import UTILS

ENCODER = 3  # steps that an encoder takes
TOKENS = 12


class Encoding:
    """A memory that is there some steps later."""

    length = 1
    failed: Exception | None = None

    def __init__(self, engine: Engine) -> None:
        self.engine, self.due = engine, engine.steps + ENCODER

    def ready(self, *, wait: bool = False) -> bool:
        self.due = min(self.due, self.engine.steps) if wait else self.due
        return self.engine.steps >= self.due


class Engine(RunningBatch):
    """A Runtime that writes down what it is asked."""

    facts: Any = SimpleNamespace(positions=64, attends=True, vocabulary=4, encodes=True)

    def __init__(self) -> None:
        self.asked: list[tuple[str, int]] = []
        self.memories: list[Encoding] = []
        self.steps = 0

    def chooses(self, sampling: Sampling) -> bool:
        return True

    def prepare(self, source: Any) -> Any:
        return source

    def encode(self, sources: Sequence[Any]) -> list[Encoding]:
        if sources:
            assert sum(not memory.ready() for memory in self.memories) < 2, "three groups at once"
            self.asked.append(("encode", len(sources)))
        self.memories.append(Encoding(self))
        return self.memories[-1:] * len(sources)

    def batch(self) -> Engine:
        return self

    def close(self) -> None:
        """Nothing is left."""

    def step(self, rows: Sequence[Row]) -> Step:
        self.steps += 1
        self.asked.append(("read", sum(row.parent is None for row in rows)))
        zeros = np.zeros(len(rows), np.int64)

        def attention(row: int, count: int) -> Looked:
            """The last ids' positions."""
            assert rows[row].attend
            self.asked.append(("look", count))
            last = rows[row].position + len(rows[row].ids) - 1
            return lambda: np.arange(last + 1 - count, last + 1, dtype=np.float16)[None, :, None]

        return Step(zeros, zeros.astype(np.float32), lambda row: np.zeros(4, np.float32), attention)


@contextmanager
def started(scheduler: Scheduler) -> Iterator[None]:
    scheduler.start()
    try:
        yield
    finally:
        scheduler.stop()


def joined(scheduler: Scheduler, joins: int = 1, *, steps: int = 1) -> None:
    """What the scheduler's thread does when somebody comes."""
    scheduler.admit(joins)
    scheduler.begin()
    for _ in range(steps):
        scheduler.step()


def submitted(scheduler: Scheduler, tokens: int = TOKENS, beams: int = 1, **more: Any) -> Job:
    """A request with something to encode."""
    sampling = Sampling(max_tokens=tokens, end_id=-1, beam_width=beams)
    made = Job(**{"prompt": (1, 2), "source": np.zeros(1), **more}, sampling=sampling, listener=Collected())
    scheduler.submit(made)
    return made


def length(made: Job) -> int:
    """How many ids it got."""
    return len(made.listener.wait(10)[0].ids)


def asked(requests: int, limits: Limits) -> list[tuple[str, int]]:
    """What an engine is asked for some requests that wait, encoders and prompts only."""
    engine = Engine()
    scheduler = Scheduler(engine, limits)
    jobs = [submitted(scheduler, TOKENS + number) for number in range(requests)]
    with started(scheduler):
        assert [length(one) for one in jobs] == [TOKENS + number for number in range(requests)]
    return [(what, count) for what, count in engine.asked if what == "encode" or count]


def test_groups_are_read_as_they_were_encoded() -> None:
    """Rows become free one after the other, faster than encoders end: somebody always waits. One group is
    encoded ahead at most.
    """
    found = asked(8, Limits(max_rows=4, join_at_once=2))
    assert found[:2] == [("encode", 4), ("read", 4)]
    groups = {name: [count for what, count in found if what == name] for name in ("encode", "read")}
    assert groups["encode"] == groups["read"]
    assert sum(groups["read"]) == 8
    ahead = np.cumsum([1 if what == "encode" else -1 for what, _ in found])
    assert set(ahead.tolist()) <= {0, 1, 2}


def test_a_full_group_waits_behind_the_one_that_is_encoded() -> None:
    """Fewer wait until that one is done: more may have come by then."""
    engine = Engine()
    scheduler = Scheduler(engine, Limits(max_rows=7, join_at_once=2))

    def encoded(come: int) -> list[int]:
        for _ in range(come):
            submitted(scheduler)
        before = len(engine.asked)
        scheduler.admit(2)
        return [count for what, count in engine.asked[before:] if what == "encode"]

    assert encoded(1) == [1]
    scheduler.begin()
    scheduler.step()
    assert encoded(2) == [2]
    assert encoded(1) == []
    assert encoded(1) == [2]
    assert encoded(3) == [], "two groups are enough"
    for _ in range(ENCODER):
        scheduler.step()
    assert scheduler.begin()
    assert len(scheduler.running) == 5
    assert encoded(0) == [2]
    assert encoded(0) == [], "no row is left"


@pytest.mark.parametrize("beams", [1, 3])
def test_where_each_step_looked_is_asked_for_once(beams: int) -> None:
    """Alongside others that do not ask: one entry for each step, the end's too. Of beams only the best's is
    asked for.
    """
    engine = Engine()
    scheduler = Scheduler(engine)
    plain, asking = submitted(scheduler, prompt=(1,)), submitted(scheduler, beams=beams, attend=True)
    with started(scheduler):
        assert [length(one) for one in (asking, plain)] == [TOKENS] * 2
    found = Answers(asking).finish(asking.listener.wait(0))["cross_attention"]
    assert found.dtype == np.float16
    assert found.tolist() == [[[[1.0 + step] for step in range(TOKENS)]]]
    assert [each for each in engine.asked if each[0] == "look"] == [("look", TOKENS)]
    assert "cross_attention" not in Answers(plain).finish(plain.listener.wait(0))


@pytest.mark.parametrize("beams", [1, 3])
def test_a_stopped_text_says_where_it_looked(beams: int) -> None:
    """Its answer is what there is so far; one that was stopped before its first step has nothing to say, and
    others go on.
    """
    scheduler = Scheduler(Engine())
    stopped = submitted(scheduler, 60, beams, request_id="a", attend=True)
    other, waits = submitted(scheduler, request_id="c"), submitted(scheduler, request_id="a")
    joined(scheduler, 2, steps=3)
    scheduler.drop("a")
    scheduler.release_cancelled()
    assert [length(one) for one in (stopped, waits)] == [3, 0]
    assert scheduler.running == [other]
    assert stopped.seen is not None
    assert stopped.seen()[0, :, 0].tolist() == [1, 2, 3]
    late = submitted(scheduler, 60, request_id="b", attend=True)
    scheduler.drop("b")
    scheduler.release_cancelled()
    assert late.listener.result.done()
    assert late.seen is None


def test_a_look_that_fails_is_its_own_request_s(monkeypatch: pytest.MonkeyPatch) -> None:
    """At its end, and where it is stopped."""
    engine = Engine()
    scheduler = Scheduler(engine)
    jobs = [
        submitted(scheduler, tokens, request_id=name, attend=True) for tokens, name in ((60, "a"), (4, "b"))
    ]
    joined(scheduler, 2, steps=3)
    step = engine.step
    monkeypatch.setattr(engine, "step", lambda rows: replace(step(rows), attention=lambda *_: 1 / 0))
    scheduler.step()
    scheduler.drop("a")
    scheduler.release_cancelled()
    for one in jobs:
        with pytest.raises(ZeroDivisionError):
            length(one)


def test_a_stop_that_comes_too_late_is_not_for_the_next_request() -> None:
    """Under the same id, which clients reuse; a stop that came before its request is for one request."""
    scheduler = Scheduler(Engine())

    def tokens(steps: int = 3) -> int:
        made = submitted(scheduler, 2, request_id="a")
        scheduler.release_cancelled()
        joined(scheduler, steps=steps)
        return length(made)

    scheduler.drop("a")
    assert [tokens(0), tokens()] == [0, 2]
    scheduler.drop("a")
    assert tokens() == 2


def test_a_stop_finds_an_answer_that_is_being_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """What comes under its id afterwards is not stopped."""
    scheduler, fetched = Scheduler(Engine()), threading.Event()
    made = submitted(scheduler, 1, request_id="a", attend=True)
    finish = made.listener.finish
    monkeypatch.setattr(made.listener, "finish", lambda beams: (fetched.wait(10), finish(beams)))
    joined(scheduler)
    assert scheduler.sending == [made]
    scheduler.drop("a")
    assert not scheduler.leaving.stopped
    fetched.set()
    assert length(made) == 1
    scheduler.answering.shutdown()
    assert not scheduler.sending


@pytest.mark.parametrize(
    ("attends", "asked", "told"),
    [
        (False, {"attend": True, "beams": 2}, "return_step_attention is not supported by this engine"),
        (True, {"prompt": ()}, "empty"),
        (True, {"prompt": (1,) * 64}, "64 positions"),
        (True, {"tokens": 64}, "request_output_len"),
        (True, {"beams": 99}, "beam_width"),
    ],
)
def test_impossible_requests_are_refused(
    monkeypatch: pytest.MonkeyPatch, attends: bool, asked: dict[str, Any], told: str
) -> None:
    """Before anything is queued, with the tensor's name."""
    engine = Engine()
    monkeypatch.setattr(engine, "facts", SimpleNamespace(**{**vars(Engine.facts), "attends": attends}))
    with pytest.raises(BadRequest, match=told):
        submitted(Scheduler(engine), **asked)


def test_a_memory_that_failed_is_its_own_request_s() -> None:
    engine = Engine()
    scheduler = Scheduler(engine, Limits(join_at_once=1))
    encode = engine.encode

    def encoded(sources: Sequence[Any]) -> list[Encoding]:
        found = encode(sources)
        if any(source.any() for source in sources):
            found[0].failed = MemoryError("the GPU is full")
        return found

    engine.encode = encoded  # type: ignore[method-assign]
    good = submitted(scheduler)
    with started(scheduler):
        bad = submitted(scheduler, source=np.ones(1))
        assert length(good) == TOKENS
        with pytest.raises(MemoryError, match="full"):
            length(bad)


@pytest.mark.parametrize("streaming", [False, True])
def test_an_answered_request_leaves_no_memory(streaming: bool) -> None:
    """What its encoder made is freed when it is answered, not when Python looks for cycles."""
    sent = threading.Event()
    sender = SimpleNamespace(is_cancelled=lambda: False, send=lambda *_: sent.set())
    request: Any = SimpleNamespace(
        get_response_sender=lambda: sender, requested_output_names=tuple, parameters=lambda: "{}"
    )
    sending = ThreadPoolExecutor(1)
    reply, scheduler = EngineReply(request, UTILS, sending), Scheduler(Engine())
    job = Job((1, 2), Sampling(max_tokens=TOKENS, end_id=-1), reply, np.zeros(1), streaming=streaming)
    reply.answers, left = Answers(job), weakref.ref(job)
    gc.disable()
    try:
        scheduler.submit(job)
        scheduler.start()
        del job, reply
        assert sent.wait(10)
        until = time.monotonic() + 10
        while left() is not None and time.monotonic() < until:
            time.sleep(0.01)  # the scheduler's thread lets go of it a little later
        assert left() is None
    finally:
        gc.enable()
        scheduler.stop()
        sending.shutdown()
