"""One run of a tritonserver, as its supervisor and its clients see it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

from conch.http_client import HttpClient, Lost

# A broken connection is noticed before the death, a dead stub before the server is ended.
CAUSE_SECONDS = 35.0


@dataclass(frozen=True)
class Death:
    """Why a server ended, and whether the cause was outside."""

    reason: str
    outside: bool


@dataclass(eq=False)
class RelayTarget:
    """A server to send a request to, over HTTP/1.1 and gRPC (a grpc.aio channel)."""

    http: HttpClient
    grpc: Any


@dataclass(eq=False)
class Life(RelayTarget):
    """One run of the server, from its first good probe to its death. `ending`: it was asked to end from
    outside; it reads no new connection, and finishes what it has.
    """

    death: asyncio.Future[Death] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    ending: asyncio.Future[Death] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    flights: set[Any] = field(default_factory=set)

    async def cause(self, lost: Lost) -> Death | None:
        """Return why something was lost: its death or, where a new connection was not read, its ending."""
        reasons = [self.death, self.ending] if lost.fresh else [self.death]
        limit = CAUSE_SECONDS if lost.sent else 2.0
        await asyncio.wait(reasons, timeout=limit, return_when=asyncio.FIRST_COMPLETED)
        return next((reason.result() for reason in reasons if reason.done()), None)
