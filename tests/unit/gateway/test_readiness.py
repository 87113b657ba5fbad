"""What /health/ready answers, and how many inferences it costs."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from conch.deployment import Pool
from gateway.services import Services
from gateway.settings import Settings

POOL = Pool("mini", "whisper", (0,), {})


class Server:
    """A model that is ready or not, and how often it was asked."""

    def __init__(self, ready: bool) -> None:
        self.is_ready, self.asked = ready, 0

    async def ready(self, pool: Pool) -> bool:
        """Its state when the inference began."""
        self.asked += 1
        result = self.is_ready
        await asyncio.sleep(0.01)
        return result


def services(server: Any) -> Services:
    """With nothing that readiness does not need."""
    other: Any = None
    return Services(Settings(deployment=Path("none"), ready_seconds=60), {"mini": POOL}, server, *[other] * 6)


async def test_a_model_counts_as_ready_at_once() -> None:
    """A failure is not kept: who asks after the model has started is told so."""
    server = Server(ready=False)
    state = services(server)
    assert await state.ready() == {"mini": False}
    server.is_ready = True
    assert [await state.ready() for _ in range(2)] == [{"mini": True}] * 2
    assert server.asked == 2


async def test_many_who_wait_share_an_inference() -> None:
    """Of a hundred at once the first has an inference of its own, and all others another."""
    server = Server(ready=False)
    state = services(server)
    assert await asyncio.gather(*(state.ready() for _ in range(100))) == [{"mini": False}] * 100
    assert server.asked == 2
