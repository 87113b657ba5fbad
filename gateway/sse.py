"""Server-sent events (https://html.spec.whatwg.org/multipage/server-sent-events.html)."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack, aclosing
from typing import Any

from fastapi import Request
from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from .disconnect import cancel_on_disconnect


def event(data: Mapping[str, Any]) -> str:
    """Make one event."""
    return f"data: {json.dumps(data, ensure_ascii=False)}\n\n"


class Events(StreamingResponse):
    """Server-sent events whose source is closed however the response ends; Starlette itself leaves that to
    the garbage collector.
    """

    media_type = "text/event-stream"

    def __init__(self, first: str, source: AsyncGenerator[str, None]) -> None:
        super().__init__(self._all(first, source), headers={"Cache-Control": "no-cache"})
        self.source = source

    @staticmethod
    async def _all(first: str, source: AsyncGenerator[str, None]) -> AsyncGenerator[str, None]:
        yield first
        async for event in source:
            yield event

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            await self.source.aclose()


async def streamed(request: Request, pieces: AsyncGenerator[str, None], held: AsyncExitStack) -> Events:
    """Start a stream after waiting for the first event, so that a bad request is still a plain 400. `held` is
    what the request holds until the stream ends.
    """

    async def events() -> AsyncGenerator[str, None]:
        async with held, aclosing(pieces):
            async for one in pieces:
                yield one

    source = events()
    return Events(await cancel_on_disconnect(request, anext(source)), source)
