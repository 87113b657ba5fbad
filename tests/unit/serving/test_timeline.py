"""Who shares an encoder's memory in a step, and where each is kept: `serving/engine/openvino/timeline.py`."""

from __future__ import annotations

import random

import numpy as np
import pytest

from serving.engine.openvino.rows import Biases
from serving.engine.openvino.runtime import OpenVinoMemory
from serving.engine.openvino.timeline import placed, sharing

A, B, C, D = (OpenVinoMemory((), length) for length in range(1, 5))


def test_rows_find_their_memory() -> None:
    """Each row's place leads back to it, and to the memory that it wants; shorter lists are filled up."""
    wanted = [A, A, B, C, A, C]
    found = sharing(wanted, [C, A, B])
    sharers, shares = found["sharers"], found["shares"]
    assert sharers.tolist() == [[3, 5, 3], [0, 1, 4], [2, 2, 2]]
    assert sharers.ravel()[shares].tolist() == list(range(len(wanted)))
    assert [[C, A, B][place // sharers.shape[1]] for place in shares] == wanted


def test_every_memory_has_one_place() -> None:
    """Rows that come and go."""
    everybody, held = [OpenVinoMemory((), length) for length in range(1, 9)], list[OpenVinoMemory]()
    dice = random.Random(1)
    for _ in range(300):
        wanted = dice.sample(everybody, dice.randint(1, 6))
        found = placed(wanted, held)
        assert sorted(map(id, found)) == sorted(map(id, wanted))
        assert all(new is old for new, old in zip(found, held, strict=False) if old in wanted)
        held = found


@pytest.mark.parametrize(
    ("rows", "shape"), [("--", (1, 1)), ("aa", (1, 3)), ("ae", (1, 3)), ("ab", (2, 3)), ("a-", (2, 3))]
)
def test_biases_are_as_small_as_they_may_be(rows: str, shape: tuple[int, int]) -> None:
    """None, one for all if they are equal, else each row's."""
    known = {
        "a": np.array([1, 0, 0], np.float32),
        "b": np.array([0, 2, 0], np.float32),
        "e": np.array([1, 0, 0], np.float32),
        "-": None,
    }
    biases = Biases(3)
    found = biases.of([known[row] for row in rows])
    assert found.shape == shape
    wanted = [np.zeros(3) if known[row] is None else known[row] for row in rows]
    assert np.array_equal(np.broadcast_to(found, (len(rows), 3)), wanted)
    assert biases.of([known[row] for row in rows]) is found
