"""Work that nobody waits for any more."""

from __future__ import annotations

import asyncio

import anyio

from gateway.disconnect import end


async def test_the_end_of_a_task_is_not_interrupted() -> None:
    """A scope of AnyIO cancels any task that waits in it again and again; the task closes what it has all the
    same.
    """
    closed = asyncio.Event()

    async def work() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            for _ in range(20):  # as a connection that is closed in several steps
                await asyncio.sleep(0)
            closed.set()

    with anyio.CancelScope() as scope:
        task = asyncio.create_task(work())
        await asyncio.sleep(0)
        scope.cancel()
        try:
            await asyncio.sleep(60)
        finally:
            await end([task])
    await asyncio.wait_for(closed.wait(), 5)
