"""Ends of asyncio's tasks."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Any


async def end(tasks: Collection[asyncio.Future[Any]]) -> None:
    """Cancel tasks and wait for their end. Each is cancelled once, however often the caller is (by AnyIO at
    every step of a scope that was cancelled): a second time would interrupt the closing of connections, and
    what nobody waits for would go on after them.
    """
    for task in tasks:
        task.cancel()
    await asyncio.shield(asyncio.gather(*tasks, return_exceptions=True))
