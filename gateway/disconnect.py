"""Cancel work when its client disconnects."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from fastapi import Request

from conch.errors import ApiError
from conch.tasks import end

T = TypeVar("T")


async def cancel_on_disconnect(request: Request, work: Awaitable[T]) -> T:
    """Return the result of `work`; if the client closes the connection first, `work` is cancelled. The
    request's body must have been read.

    Raises:
        ApiError: 499 (nginx's number for it), which nobody reads.
    """
    task, gone = asyncio.ensure_future(work), asyncio.ensure_future(_gone(request))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ApiError(499, "the client closed the connection", code="client_closed_request")
        return task.result()
    finally:
        await end((task, gone))


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
