"""Places for work: bounded, and given back."""

from __future__ import annotations

from dataclasses import replace

import pytest

from conch.deployment import Pool
from conch.errors import ApiError
from gateway.admission import Admission

POOL = Pool("mini", "whisper", (0, 1), {})


def test_places_are_given_back() -> None:
    """One too many is a 503 with Retry-After; after it there is room again."""
    admission = Admission(per_instance=1, what="recordings")
    with admission.place(POOL), admission.place(POOL):
        with pytest.raises(ApiError) as error, admission.place(POOL):
            pass
        assert (error.value.status, error.value.retry_after) == (503, 1)
    with admission.place(POOL):
        pass


def test_places_are_the_rows_of_the_engine_unless_configured() -> None:
    """Of each instance, up to a limit; gateways share them."""
    gpu = replace(POOL, rows=64)
    assert [Admission(0, "recordings", gateways).places(gpu) for gateways in (1, 2, 8)] == [128, 64, 16]
    assert Admission(0, "recordings").places(POOL) == 32
    assert Admission(5, "recordings", 3).places(gpu) == 4
    assert Admission(0, "recordings", 2, most=32).places(gpu) == 32
    assert Admission(90, "recordings", 2, most=32).places(gpu) == 90


def test_much_work_takes_many_places_but_never_all() -> None:
    """Half at most, so that a request for more than there is gets its turn."""
    admission = Admission(per_instance=8, what="texts")
    with admission.place(POOL, 100), admission.place(POOL, 7):
        assert admission.inside[POOL.model_id] == 8 * len(POOL.instances) // 2 + 7
    assert admission.inside[POOL.model_id] == 0
