"""End asyncio tasks, and run several at once."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Coroutine, Iterable
from typing import Any, TypeVar

T = TypeVar("T")


async def end(tasks: Collection[asyncio.Future[Any]]) -> None:
    """Cancel tasks and wait for them. Each is cancelled once, even if the caller is cancelled repeatedly (as
    AnyIO does at every step of a cancelled scope): a second cancellation would interrupt the closing of
    connections, and tasks that nothing awaits would run on.
    """
    for task in tasks:
        task.cancel()
    await asyncio.shield(asyncio.gather(*tasks, return_exceptions=True))


async def results_of(work: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Return all results in order. The first failure stops what is still running, and is raised."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one) for one in work]
    except ExceptionGroup as failed:  # not except*: Python 3.11.2 wraps what that raises in a group again
        raise failed.exceptions[0] from None
    return [task.result() for task in tasks]
