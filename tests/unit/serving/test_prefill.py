"""Prompts that are read in pieces, between the steps of texts that run."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from serving.engine.collected import Collected
from serving.engine.jobs import Job, Limits
from serving.engine.runtime import Row, Step
from serving.engine.sampling import Sampling
from serving.engine.scheduler import Scheduler

from .test_scheduler import Engine, joined


class Reads(Engine):
    """Writes down how many prompt ids were read before, and are read, by each row."""

    facts: Any = SimpleNamespace(positions=64, attends=False, vocabulary=4, encodes=False)

    def __init__(self, known: int = 0) -> None:
        super().__init__()
        self.read: list[list[tuple[int, int] | None]] = []
        self.cached = known

    def known(self, prompt: Sequence[int]) -> int:
        return min(self.cached, len(prompt) - 1)

    def step(self, rows: Sequence[Row]) -> Step:
        self.read.append([(len(row.before), len(row.ids)) if row.reads else None for row in rows])
        return super().step(rows)


def job(prompt: int, tokens: int) -> Job:
    return Job((1,) * prompt, Sampling(max_tokens=tokens, end_id=-1), Collected())


def test_cached_ids_are_not_waited_for() -> None:
    """Prompts of which few ids are not cached join together, next to a text that runs."""
    engine = Reads(known=30)
    scheduler = Scheduler(engine, Limits(max_rows=4, prefill_tokens=4))
    scheduler.waiting.append(job(3, 12))
    joined(scheduler)
    scheduler.waiting.extend(job(32, 2) for _ in range(3))
    joined(scheduler, 3)
    assert engine.read == [[(2, 1)], [None, (30, 2), (30, 2)]]


def test_long_prompts_are_read_between_the_steps_of_others() -> None:
    """Few ids at a time while a text runs, and a short prompt joins meanwhile; many where nobody waits."""
    engine = Reads()
    scheduler = Scheduler(engine, Limits(max_rows=4, prefill_tokens=4))
    first, long, short = job(2, 12), job(11, 2), job(3, 2)
    for one in (first, long, short):
        scheduler.waiting.append(one)
        joined(scheduler)
    while scheduler.running:
        scheduler.step()
    assert engine.read[:4] == [[(0, 2)], [None, (0, 4)], [None, (4, 4), (0, 3)], [None, (8, 3), None]]
    assert [len(one.listener.wait(1)[0].ids) for one in (first, long, short)] == [12, 2, 2]
    scheduler.waiting.append(job(40, 1))
    joined(scheduler, steps=2)
    assert engine.read[-2:] == [[(0, 32)], [(32, 8)]]


def test_short_prompts_are_read_before_long_ones() -> None:
    """But after those that have waited for long; the end of one and the start of the next together."""
    engine = Reads()
    scheduler = Scheduler(engine, Limits(max_rows=5, prefill_tokens=4))
    text, longer, short, old = job(2, 30), job(12, 1), job(9, 1), job(11, 1)
    scheduler.submit(text)
    joined(scheduler)
    for one in (longer, short, old):
        scheduler.submit(one)
    old.came -= 60
    scheduler.admit(3)
    for _ in range(9):
        joined(scheduler)
    pieces = [tuple(piece for piece in step if piece) for step in engine.read[1:]]
    old_and_short = [((0, 4),), ((4, 4),), ((8, 3), (0, 1)), ((1, 4),), ((5, 4),)]
    assert pieces == [*old_and_short, ((0, 4),), ((4, 4),), ((8, 4),), ()]


@pytest.mark.parametrize("chooses", [True, False])
def test_one_short_prompt_at_a_time_joins_a_long_one(chooses: bool) -> None:
    """In place of a part of it, unless the host chooses ids: then each is a pass of its own on a GPU."""
    engine = Reads()
    engine.chooses = lambda _: chooses  # type: ignore[method-assign]
    scheduler = Scheduler(engine, Limits(max_rows=5, prefill_tokens=4))
    for one in (job(2, 30), job(12, 1)):
        scheduler.submit(one)
        joined(scheduler)
    for one in (job(2, 9), job(2, 9)):
        scheduler.submit(one)
    joined(scheduler, 2)
    joined(scheduler, 2)
    parts = [(4, 2), (6, 2)] if chooses else [(4, 4), (8, 4)]
    assert engine.read[-2:] == [[None, parts[0], (0, 2)], [None, parts[1], None, (0, 2)]]


def test_prompts_that_wait_take_no_rows() -> None:
    """So a short one that comes later finds one."""
    engine = Reads()
    scheduler = Scheduler(engine, Limits(max_rows=3, prefill_tokens=4))
    for one in (job(2, 30), job(12, 1), job(13, 1), job(3, 1)):
        scheduler.submit(one)
        joined(scheduler)
    assert engine.read[-1] == [None, (8, 4), (0, 3)]


@pytest.mark.parametrize("cached", [0, 8])
def test_a_long_prompt_is_put_off_where_what_was_read_of_it_stays_cached(cached: int) -> None:
    engine = Reads()
    scheduler = Scheduler(engine, Limits(max_rows=5, prefill_tokens=4))
    text, long, short = job(2, 30), job(24, 1), job(15, 1)
    for one in (text, long):
        scheduler.submit(one)
        joined(scheduler, steps=3 if one is long else 1)
    engine.cached = cached
    scheduler.submit(short)
    while len(scheduler.running) > 1 or scheduler.encoding:
        joined(scheduler)
    pieces = [piece for step in engine.read[1:] for piece in step if piece]
    assert pieces[:3] == [(0, 4), (4, 4), (8, 4)]
    assert pieces[3:] == (
        [(8, 4), (12, 3), (8, 1), (9, 4), (13, 4), (17, 4), (21, 3)]
        if cached
        else [(12, 4), (16, 4), (20, 4), (0, 4), (4, 4), (8, 4), (12, 3)]
    )
