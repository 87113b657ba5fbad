"""Biases of a step's rows: `serving/engine/openvino/rows.py`."""

from __future__ import annotations

import numpy as np
import pytest

from serving.engine.openvino.rows import Biases


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
