"""What the scheduler measures of its requests, and tells a collector."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from serving.engine.collected import Collected
from serving.engine.jobs import Job, Limits
from serving.engine.runtime import Row, Step
from serving.engine.sampling import Sampling
from serving.engine.scheduler import Scheduler
from serving.engine.tracing import Spans
from tests.fakes.collector import collector

from .test_scheduler import Engine

TRACE, PARENT = "0" * 31 + "7", "00000000000000ff"
LIMITS = Limits(max_rows=2, max_queue=4)


class Clock(Engine):
    """A runtime whose encoder takes 0.1 s and whose steps take 0.01 s, of a time that only it lets pass."""

    facts: Any = SimpleNamespace(**{**vars(Engine.facts), "positions": 20})
    now = 100.0

    def monotonic(self) -> float:
        return self.now

    def encode(self, sources: Sequence[Any]) -> list[Any]:
        self.now += 0.1 * bool(sources)
        return [SimpleNamespace(failed=None, ready=lambda wait: True) for _ in sources]

    def step(self, rows: Sequence[Row]) -> Step:
        self.now += 0.01
        return super().step(rows)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """What the scheduler takes for the time."""
    clock = Clock()
    for module in ("admission", "scheduler"):
        monkeypatch.setattr(f"serving.engine.{module}.time", SimpleNamespace(monotonic=clock.monotonic))
    return clock


def submit(scheduler: Scheduler, listener: Collected, tokens: int = 5, **more: Any) -> Job:
    job = Job((1, 2), Sampling(max_tokens=tokens, end_id=9), listener, np.zeros(1), **more)
    scheduler.submit(job)
    return job


def figures(scheduler: Scheduler) -> dict[str, float]:
    """Sums and values, without buckets and the times of creation, which another module may have put off."""
    families = scheduler.metrics.registry.collect()
    rows = [sample for family in families for sample in family.samples if "le" not in sample.labels]
    return {
        "".join((sample.name, *sample.labels.values())): round(sample.value, 6)
        for sample in rows
        if not sample.name.endswith("_created")
    }


def run(clock: Clock, spans: Spans) -> Scheduler:
    """Three requests for five tokens each after prompts of two, and two rows."""
    scheduler = Scheduler(clock, LIMITS)
    scheduler.spans = spans
    context = json.dumps({"traceparent": f"00-{TRACE}-{PARENT}-01"})
    trace = SimpleNamespace(get_context=lambda: context)
    request = SimpleNamespace(parameters=lambda: "", trace=lambda: trace)
    for _ in range(3):
        submit(scheduler, Collected(), trace=spans.parent(request))
    scheduler.admit(2)
    scheduler.begin()
    scheduler._measure()
    full = figures(scheduler)
    assert (full["conch_engine_rows_in_use"], full["conch_engine_requests_waiting"]) == (2, 1)
    assert full["conch_engine_cache_used_ratio"] == 4 / 40  # two rows at position 2, of two with 20 positions
    while scheduler.running:
        scheduler.step()
        scheduler.admit(2)
        scheduler.begin()
    scheduler._measure()
    return scheduler


def test_a_requests_time_is_where_it_was_spent(clock: Clock) -> None:
    """The third waits for the first two: 0.1 s of encoder and 0.05 s of steps."""
    found = figures(run(clock, Spans("")))
    assert found == {
        "conch_engine_queue_seconds_count": 3,
        "conch_engine_queue_seconds_sum": 0.15,
        "conch_engine_encode_seconds_count": 3,
        "conch_engine_encode_seconds_sum": 0.3,
        "conch_engine_first_token_seconds_count": 3,
        "conch_engine_first_token_seconds_sum": 0.48,  # 0.11, 0.11 and 0.26
        "conch_engine_token_seconds_count": 3,
        "conch_engine_token_seconds_sum": 0.03,
        "conch_engine_tokens_totalread": 6,
        "conch_engine_tokens_totalcached": 0,
        "conch_engine_tokens_totalwritten": 15,
        "conch_engine_requests_waiting": 0,
        "conch_engine_rows_in_use": 0,
        "conch_engine_rows": 2,
        "conch_engine_cache_used_ratio": 0,
    }


def test_spans_say_the_same(clock: Clock) -> None:
    """Four for each request, one after the other, under the parent span that Triton reports."""
    with collector() as told:
        spans = Spans(told.url)
        run(clock, spans)
        spans.close()
        assert told.refused == []
    found = sorted(told.of(TRACE), key=lambda span: (span.begin, span.end))
    assert {(span.service, span.parent) for span in found} == {("conch-engine", PARENT)}
    steps = ["engine queue", "engine encode", "engine first token", "engine tokens"]
    assert sorted(span.name for span in found) == sorted(steps * 3)
    last = [span for span in found if span.name == "engine tokens"][-1]
    assert last.attributes == {"conch.tokens": 5, "conch.read": 2}
    assert (last.end - last.begin) / 1e9 == pytest.approx(0.04, abs=1e-4)
    waited = sorted(span.end - span.begin for span in found if span.name == "engine queue")
    assert [seconds / 1e9 for seconds in waited] == pytest.approx([0, 0, 0.15], abs=1e-4)


def test_nothing_is_made_without_a_collector() -> None:
    """Nor asked of Triton."""
    off = Spans("")
    assert off.parent(None) is None  # no request is looked at
    off.note(None, {})
    off.close()


class Witness(Collected):
    """Looks at the running batch when it is told how its request ended."""

    def __init__(self, running: Callable[[], Sequence[Job]]) -> None:
        super().__init__()
        self.running, self.seen = running, list[int]()

    def fail(self, error: Exception) -> None:
        self.seen.append(len(self.running()))
        super().fail(error)


def test_who_is_told_that_a_request_was_dropped_finds_its_rows_free(clock: Clock) -> None:
    """Cancelled while it ran: a thread that waits for that may look before the scheduler goes on."""
    scheduler = Scheduler(clock, LIMITS)
    listeners = [Witness(lambda: scheduler.running) for _ in range(3)]
    for listener in listeners:
        submit(scheduler, listener)
    scheduler.admit(2)
    scheduler.begin()
    for listener in listeners:
        listener.dropped = True
    scheduler.release_cancelled()
    assert [listener.seen for listener in listeners] == [[0]] * 3
    assert not scheduler.waiting


class Asked(Collected):
    """Counts how often it is asked whether its client has left."""

    times = 0

    def cancelled(self) -> bool:
        self.times += 1
        return super().cancelled()


def test_a_client_is_asked_for_twice_a_second(clock: Clock) -> None:
    """However many steps that is; who was stopped by another message goes at the next look."""
    scheduler, listener = Scheduler(clock, LIMITS), Asked()
    submit(scheduler, listener, 15, request_id="one")
    scheduler.admit(1)
    scheduler.begin()
    for step, times in ((0.0, 1), (0.2, 1), (0.2, 1), (0.2, 2), (0.4, 2), (0.2, 3)):
        clock.now += step
        scheduler.release_cancelled()
        assert listener.times == times
    scheduler.drop("one")
    scheduler.release_cancelled()
    assert listener.times == 4  # it is asked once more when it is told
    assert not scheduler.running


def test_few_clients_are_asked_for_in_one_look(clock: Clock) -> None:
    """Those first that were not asked for the longest; no step runs meanwhile."""
    scheduler, listeners = Scheduler(clock, Limits(max_rows=2, max_queue=20)), [Asked() for _ in range(12)]
    for listener in listeners:
        submit(scheduler, listener)
    for asked in (8, 12, 12):
        scheduler.release_cancelled()
        assert sum(listener.times for listener in listeners) == asked
    assert {listener.times for listener in listeners} == {1}
