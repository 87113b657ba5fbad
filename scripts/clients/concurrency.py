"""Run many requests, some of them concurrently."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from tqdm import tqdm

Item = TypeVar("Item")
Outcome = TypeVar("Outcome")


async def at_once(
    ask: Callable[[Item], Awaitable[Outcome]], items: Sequence[Item], tasks: int, unit: str
) -> tuple[list[Outcome], float]:
    """Return all outcomes in the items' order, and the seconds they took, with `tasks` requests in flight. On
    a terminal it shows a progress bar of `unit`s.
    """
    waiting, outcomes = iter(enumerate(items)), dict[int, Outcome]()

    async def work() -> None:
        for i, item in waiting:
            outcomes[i] = await ask(item)
            bar.update()

    begin = time.perf_counter()
    with tqdm(total=len(items), unit=unit, leave=False, disable=None) as bar:
        async with asyncio.TaskGroup() as group:
            for _ in range(tasks):
                group.create_task(work())
    return [outcomes[i] for i in range(len(items))], time.perf_counter() - begin
