"""The simulation behind docs/scale.md: where theory says what comes out, and beside what was measured."""

from __future__ import annotations

from dataclasses import replace

import pytest

from scripts import scale
from scripts.scale import ENGINE, H200, LIMIT, PAGE, STACK, WINDOW, Times, at, closed, fitted, open_load

FREE = ((1.0, 0.0), (2.0, 0.0))  # a table of no time


def test_tables_are_linear_between_and_beyond() -> None:
    table = ((1.0, 10.0), (3.0, 30.0), (4.0, 50.0))
    assert [at(table, x) for x in (1, 2, 3, 4, 6)] == [10, 20, 30, 50, 90]


@pytest.mark.parametrize("busy", [0.3, 0.6, 0.8])
def test_a_front_alone_waits_as_theory_says(busy: float) -> None:
    """M/D/1: the mean wait is busy / (2 (1 - busy)) of the service (Pollaczek and Khinchine), the mean time
    that and one service; the median is below it, 95 of 100 are above.
    """
    times = Times(FREE, FREE, tokens=1, join=10**6, rows=10**6, front=0.01)
    waits: list[float] = []
    found = open_load(times, busy / 0.01, 2_000.0, told=lambda came, end: waits.append(end - came))
    assert sum(waits) / len(waits) == pytest.approx(0.01 * (1 + busy / (2 * (1 - busy))), rel=0.05)
    assert found.rate == pytest.approx(busy / 0.01, rel=0.02)
    assert found.p50 <= sum(waits) / len(waits) <= found.p95


def test_a_batch_is_shared() -> None:
    """Four clients of an engine that steps in 10 ms whatever the rows: each gets an answer of ten tokens in a
    tenth of a second, as one alone does.
    """
    times = Times(FREE, ((1.0, 0.01), (2.0, 0.01)), tokens=10, join=8, rows=8)
    for clients in (1, 4):
        found = closed(times, clients)
        assert found.p50 == pytest.approx(0.1, abs=0.011)
        assert found.rate == pytest.approx(clients / 0.1, rel=0.1)


def test_rows_are_bounded() -> None:
    """Twice as many clients as rows wait twice as long."""
    times = Times(FREE, ((1.0, 0.01), (2.0, 0.01)), tokens=10, join=8, rows=4)
    assert closed(times, 8).p50 == pytest.approx(2 * closed(times, 4).p50, rel=0.15)


def test_it_predicts_what_was_measured() -> None:
    """Rows that nothing was fitted to: rates and medians within a fifth."""
    times = fitted()
    engine = replace(times, front=0.0, stack=0.0)
    for own, rows, used in ((engine, ENGINE, (1, 128)), (times, STACK, (1, 64))):
        for clients, (rtfx, p50) in rows.items():
            found = closed(own, clients)
            if clients not in used:
                assert found.rate * WINDOW == pytest.approx(rtfx, rel=0.2)
            assert found.p50 * 1000 == pytest.approx(p50, rel=0.2)
    without = replace(H200, encode=FREE)
    assert closed(without, 64).rate * WINDOW > 3 * ENGINE[64][0]  # the agreement is no accident of the form


def test_the_page_has_todays_figures() -> None:
    """`python -m scripts.scale` writes them anew. The search for the capacity takes seconds: that it lies
    where the page says is all that is looked up.
    """
    text, times = PAGE.read_text("utf-8"), fitted()
    assert scale.checked(times) in text
    assert "One instance answers 89 requests a second in time" in text
    assert open_load(times, 88.0, 300.0).p95 <= LIMIT < open_load(times, 90.5, 300.0).p95
