"""When each request gets the encoder, with an encoder that computes what it is told to."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from serving.engine.rounds import Rounds, Work
from serving.errors import QueueFull

SECONDS = 10


class Encoder:
    """Each round is told and waits for leave; 13 cannot be computed."""

    def __init__(self) -> None:
        self.told: SimpleQueue[list[int]] = SimpleQueue()
        self.leave: SimpleQueue[None] = SimpleQueue()
        self.rounds = Rounds(self.compute, 4)

    def compute(self, rows: Sequence[NDArray[Any]]) -> NDArray[Any]:
        values = [int(row[0]) for row in rows]
        self.told.put(values)
        self.leave.get(timeout=SECONDS)
        if 13 in values:
            raise ValueError("thirteen")
        return np.array(values) * 10

    def next(self) -> list[int]:
        """The values of the round that is computed now; it ends."""
        values = self.told.get(timeout=SECONDS)
        self.leave.put(None)
        return values


@pytest.fixture
def encoder() -> Iterator[Encoder]:
    made = Encoder()
    yield made
    made.leave.put(None)
    made.rounds.close()


def work(*values: int, cost: float = 1.0) -> tuple[Work, Future[list[int]]]:
    done: Future[list[int]] = Future()
    rows = [np.array([value]) for value in values]
    return Work(rows, [cost] * len(rows), done.set_result, done.set_exception), done  # type: ignore[arg-type]


def test_a_small_request_comes_before_the_rest_of_a_large_one(encoder: Encoder) -> None:
    """And shares its round; results are in the order of the rows."""
    large, all_large = work(*range(9))
    encoder.rounds.submit([large])
    first = encoder.told.get(timeout=SECONDS)
    small, all_small = work(50)
    encoder.rounds.submit([small])
    encoder.leave.put(None)
    second = encoder.next()
    assert second[0] == 50
    assert all_small.result(SECONDS) == [500]
    assert not all_large.done()
    third = encoder.next()
    assert sorted([*first, *second[1:], *third]) == list(range(9))
    assert [len(one) for one in (first, second, third)] == [4, 4, 2]
    assert all_large.result(SECONDS) == [10 * value for value in range(9)]


@pytest.mark.parametrize(("seconds", "second"), [(29, [50, 0]), (31, [0, 50])])
def test_a_large_request_is_not_postponed_for_ever(
    encoder: Encoder, monkeypatch: pytest.MonkeyPatch, seconds: float, second: list[int]
) -> None:
    """It yields for half a minute for each round that it takes longer."""
    clock = SimpleNamespace(now=0.0, monotonic=lambda: clock.now)
    monkeypatch.setattr("serving.engine.rounds.time", clock)
    encoder.rounds.submit([work(*range(5))[0]])
    encoder.told.get(timeout=SECONDS)
    clock.now = seconds
    encoder.rounds.submit([work(50)[0]])
    encoder.leave.put(None)
    assert encoder.next() == second


def test_too_much_that_waits_is_refused(encoder: Encoder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Until some of it is done."""
    monkeypatch.setattr("serving.engine.rounds.MOST_BYTES", 40)
    (first, done), (second, refused), (third, later) = work(1, 2, 3), work(4, 5, 6), work(7)
    encoder.rounds.submit([first, second])
    with pytest.raises(QueueFull, match="retry"):
        refused.result(SECONDS)
    encoder.next()
    assert done.result(SECONDS) == [10, 20, 30]
    encoder.rounds.submit([third])
    encoder.next()
    assert later.result(SECONDS) == [70]


def test_a_row_that_costs_more_than_a_round_is_one(encoder: Encoder) -> None:
    long, done = work(7, 8, cost=9.0)
    encoder.rounds.submit([long])
    assert [encoder.next(), encoder.next()] == [[8], [7]]
    assert done.result(SECONDS) == [70, 80]


def test_a_round_that_fails_ends_its_requests_alone(encoder: Encoder) -> None:
    """The rest of them is not computed; others are."""
    bad, gone = work(1, 2, 3, 4, 5, 13)
    good, done = work(6, 7, 8)
    encoder.rounds.submit([bad])
    encoder.told.get(timeout=SECONDS)
    encoder.rounds.submit([good])
    encoder.leave.put(None)
    with pytest.raises(ValueError, match="thirteen"):
        gone.result(SECONDS)
    assert sorted(encoder.next()) == [6, 7, 8]
    assert done.result(SECONDS) == [60, 70, 80]


def test_what_waits_at_the_end_fails(encoder: Encoder) -> None:
    encoder.rounds.submit([work(1)[0]])
    encoder.told.get(timeout=SECONDS)
    waiting, done = work(2)
    encoder.rounds.submit([waiting])
    with ThreadPoolExecutor(1) as other:
        closing = other.submit(encoder.rounds.close)
        while not encoder.rounds.closed:
            time.sleep(0.01)
        encoder.leave.put(None)
        closing.result(SECONDS)
    late, refused = work(3)
    encoder.rounds.submit([late])
    for one in (done, refused):
        assert "stopping" in str(one.exception(SECONDS))
