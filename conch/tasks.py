"""End asyncio tasks."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Any


async def end(tasks: Collection[asyncio.Future[Any]]) -> None:
    """Cancel tasks and wait for them. Each is cancelled once, even if the caller is cancelled repeatedly (as
    AnyIO does at every step of a cancelled scope): a second cancellation would interrupt the closing of
    connections, and tasks that nothing awaits would run on.
    """
    for task in tasks:
        task.cancel()
    await asyncio.shield(asyncio.gather(*tasks, return_exceptions=True))
