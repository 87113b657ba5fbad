"""The ladder of lengths: near, few, and never too short."""

from __future__ import annotations

from serving.lengths import GRAIN, grained


def test_near() -> None:
    """At least as long, at most a sixteenth or a grain longer, and never over the limit."""
    for length in range(1, 3001):
        found = grained(length, 3000)
        assert length <= found <= min(3000, max(length * 17 / 16, length + GRAIN - 1))
        assert grained(found, 3000) == found


def test_few() -> None:
    """Some 70 lengths instead of 3,000."""
    found = {grained(length, 3000) for length in range(1, 3001)}
    assert len(found) <= 80
    assert not any(length % GRAIN for length in found - {3000})
