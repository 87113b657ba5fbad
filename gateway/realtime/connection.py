"""The WebSocket of a live session: JSON events in both directions, errors, and the idle timeout."""

from __future__ import annotations

import asyncio
import json
import uuid
from contextlib import suppress
from typing import Any

from fastapi import WebSocket, WebSocketDisconnect
from starlette.types import Message

from conch.errors import ApiError

from ..errors import error_body, internal
from ..triton import call_id

LARGEST_EVENT = 64 * 1024  # characters of an event that brings no sound
LONGEST_ID = 512  # characters of an event's id, which errors repeat


def parsed(text: str) -> dict[str, Any]:
    """Parse an event. Only audio may be large, a string in a flat object: 20 MB of lists would become
    gigabytes of Python objects.
    """
    if len(text) > LARGEST_EVENT and ("[" in text or text.count("{") != 1 or text.count(",") > 16):
        return {"type": "too large"}
    with suppress(ValueError, RecursionError):
        if isinstance(event := json.loads(text), dict):
            return event
    return {"type": "not a JSON object"}


class LiveConnection:
    """One WebSocket, closed after `idle_seconds` without a message."""

    def __init__(self, socket: WebSocket, idle_seconds: float) -> None:
        self.socket, self.idle_seconds = socket, idle_seconds
        self.request_id = call_id(socket.state.request_id)

    async def send(self, kind: str, **fields: Any) -> None:
        """Send one event to the client; ignored if it has gone, which the reading side notices."""
        with suppress(WebSocketDisconnect, RuntimeError):
            await self.socket.send_text(
                json.dumps({"type": kind, "event_id": f"event_{uuid.uuid4().hex[:20]}", **fields})
            )

    async def received(self) -> Message:
        """Return the next message. An idle connection is closed, since others wait for its place, without an
        error event: clients reconnect after a close, and give up after an error.
        """
        try:
            return await asyncio.wait_for(self.socket.receive(), self.idle_seconds)
        except TimeoutError:
            with suppress(WebSocketDisconnect, RuntimeError):
                await self.socket.close(1001, f"nothing was sent for {self.idle_seconds:g} s; connect again")
            return {"type": "websocket.disconnect"}

    async def fail(self, error: Exception, event: dict[str, Any]) -> None:
        """Report that an event failed."""
        own = event.get("event_id")
        name = own[:LONGEST_ID] if isinstance(own, str) else None
        await self.send("error", error={**self.described(error), "event_id": name})

    def described(self, error: Exception) -> dict[str, str | None]:
        """Return the error that the client reads; internal details go to the log only."""
        if not isinstance(error, ApiError):
            error = internal(error, self.request_id)
        return error_body(error)["error"]
