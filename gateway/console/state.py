"""What runs, for the console: the plan from deployment.json, the rest from each instance's guard, through
nginx's internal listener.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from conch.deployment import Deployment, Instance, Pool
from conch.http_client import Lost

from ..triton import Triton

GUARD_SECONDS = 3.0  # for a guard to say how it is; it asks its server, which may be busy
KEPT_SECONDS = 0.5  # many pages that look at once ask the guards once


class Overview:
    """The deployment and its state."""

    def __init__(self, deployment: Deployment, triton: Triton) -> None:
        self.deployment, self.triton = deployment, triton
        self.asking = asyncio.Lock()
        self.asked, self.found = float("-inf"), list[dict[str, Any]]()

    def instance(self, index: int) -> Instance | None:
        """Return an instance by its number; None if there is none."""
        return next((one for one in self.deployment.instances if one.index == index), None)

    def models(self) -> list[dict[str, Any]]:
        """Return one row for each pool."""
        return [model_row(pool) for pool in self.deployment.pools]

    async def instances(self) -> list[dict[str, Any]]:
        """Return one row for each instance, at most KEPT_SECONDS old."""
        async with self.asking:
            if time.monotonic() - self.asked > KEPT_SECONDS:
                every = [self._status(instance) for instance in self.deployment.instances]
                statuses = await asyncio.gather(*every)
                self.found = [
                    instance_row(instance, status)
                    for instance, status in zip(self.deployment.instances, statuses, strict=True)
                ]
                self.asked = time.monotonic()
            return self.found

    async def _status(self, instance: Instance) -> Mapping[str, Any] | None:
        """Return a guard's status (ops/guard/operate.py); None if it does not answer."""
        with suppress(Lost, TimeoutError, ValueError):
            path = f"/instances/{instance.index}/guard/status"
            answer = await self.triton.ask("GET", path, seconds=GUARD_SECONDS)
            if answer.status == 200:
                status: Mapping[str, Any] = json.loads(answer.body)
                return status
        return None

    async def restart(self, instance: Instance) -> bool:
        """Ask an instance's guard to drain and restart, and tell whether it was reached."""
        with suppress(Lost, TimeoutError):
            path = f"/instances/{instance.index}/guard/restart"
            return (await self.triton.ask("POST", path, seconds=GUARD_SECONDS)).status == 202
        return False


def model_row(pool: Pool) -> dict[str, Any]:
    """Make a pool's row from the plan."""
    names = ("family", "target", "precision", "languages", "instances", "size", "licence", "note", "examples")
    own = {"capabilities": sorted(pool.capabilities), "chat": pool.chat is not None, "encoder": pool.encodes}
    return {"id": pool.model_id, **{name: getattr(pool, name) for name in names}, **own}


def instance_row(instance: Instance, status: Mapping[str, Any] | None) -> dict[str, Any]:
    """Make an instance's row from the plan and its guard: `restarts` counts since the guard started. Without
    a guard the state is "unreachable", and nothing else is known.
    """
    plan = {
        "index": instance.index,
        "name": instance.name,
        "model": instance.model_id,
        "cpus": list(instance.cpus),
        "gpus": instance.gpus,
    }
    if status is None:
        return {**plan, "state": "unreachable", "events": []}
    told = {key: value for key, value in status.items() if key != "starts"}
    return {**plan, **told, "restarts": max(0, status["starts"] - 1)}
