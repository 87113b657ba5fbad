"""The planned restart: one instance at a time, each waited for."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from conch.deployment import Deployment, Instance, Pool
from ops import restart
from ops.restart import NotBack, restart_all


def instance(index: int) -> Instance:
    return Instance(
        index, "m", "", "/bundle", (0,), f"unix:/run/triton-{index}.http", f"unix:/run/triton-{index}.grpc"
    )


@dataclass
class Guards:
    """Guards that need some looks to come back; `lives` counts each one's servers."""

    looks: int
    lives: list[int] = field(default_factory=lambda: [1, 1])
    away: list[int] = field(default_factory=lambda: [0, 0])
    asked: list[tuple[int, list[int]]] = field(default_factory=list)

    def plan(self) -> Deployment:
        return Deployment((instance(0), instance(1)), (Pool("m", "", (0, 1)),))

    def restart(self, instance: Instance) -> None:
        self.asked.append((instance.index, list(self.away)))
        self.away[instance.index] = self.looks

    def metrics(self, instance: Instance) -> str:
        i = instance.index
        if self.away[i]:
            self.away[i] -= 1
            self.lives[i] += self.away[i] == 0
            return "" if self.away[i] % 2 else said(0, self.lives[i])
        return said(1, self.lives[i])


def said(serving: int, starts: int) -> str:
    """As a guard's metrics say it."""
    label = '{model="m"}'
    return f"conch_triton_serving{label} {serving}.0\nconch_triton_starts_total{label} {starts}.0\n"


def test_the_second_waits_for_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(restart.time, "sleep", lambda _: None)
    guards = Guards(looks=5)
    restart_all(guards)
    assert guards.asked == [(0, [0, 0]), (1, [0, 0])]
    assert guards.lives == [2, 2]


def test_one_that_stays_away_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The other instance of the pool is not touched then."""
    clock = iter(range(0, 10**6, 30))
    monkeypatch.setattr(restart.time, "sleep", lambda _: None)
    monkeypatch.setattr(restart.time, "monotonic", lambda: float(next(clock)))
    guards = Guards(looks=10**6)
    with pytest.raises(NotBack, match="triton-0 does not answer"):
        restart_all(guards)
    assert [index for index, _ in guards.asked] == [0]
