"""Route each request: to the own server, to the guard of another instance of the pool, or nowhere.

A server that dies takes its requests in flight with it. If it was killed from outside, all of them fail over
to another instance at once; so do requests that a server no longer reads after it was asked to end. If it
died by itself, one of the requests in flight may be the cause: requests with content that was answered before
fail over, the others are suspects. They wait for their own server, which is lost anyway, and run there again
one by one, alone; meanwhile no instance of the pool takes the same content. A request that is in flight when
a server dies for the second time is quarantined for a minute. So one request, however often it is sent, costs
a pool one instance.

What no other instance can take waits for the own server, if that is away for a moment: a pool of one loses
nothing when its server is killed or restarted.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import structlog

from conch.http_client import Lost

from ..life import Death, Life, RelayTarget
from ..metrics import GuardMetrics
from .suspicion import REFUSED_SECONDS, SUSPECT_SECONDS, Suspicion

log = structlog.get_logger()
Result = TypeVar("Result")
AWAY_SECONDS = 60.0  # the longest that a request waits for its server's return
MOST_WAITING, MOST_WAITING_BYTES = 128, 512 << 20
LOOK = 0.05
GONE = "the instances that processed this request were lost; try again in a few seconds"
NOBODY = "no instance of this model can take the request now; try again in a few seconds"


class Unavailable(Exception):
    """No instance can take this request now; 503 over HTTP, UNAVAILABLE over gRPC. `unread`: no server has
    read it.
    """

    def __init__(self, message: str, retry_after: int = 2, *, unread: bool = False) -> None:
        super().__init__(message)
        self.retry_after, self.unread = retry_after, unread


@dataclass(eq=False)
class Call(Generic[Result]):
    """A request that may be sent again: its model, a fingerprint (computed on demand), and how to send it to
    a target. Sending raises Lost.

    Attributes:
        handed: another guard has forwarded it, and it is forwarded no further
        lost: a guard or a server was lost with it; it may be forwarded, but the next server that is lost with
            it is the last
        until: when it stops waiting for a server's return if there is no other, as time.monotonic(); 0 for no
            waiting
        size: its bytes
        reads: it asks for metadata or health, which crashes no server
    """

    model: str
    mark: Callable[[], str]
    send: Callable[[RelayTarget], Awaitable[Result]]
    handed: bool = False
    lost: bool = False
    until: float = 0.0
    size: int = 0
    reads: bool = False


class Relay:
    """The own server's life, the other instances, and what is known about requests."""

    def __init__(self, peers: Sequence[RelayTarget], metrics: GuardMetrics) -> None:
        self.peers, self.metrics = peers, metrics
        self.suspicion = Suspicion()
        self.life: Life | None = None
        self.stopping = False
        self.trying: Call[Any] | None = None
        self.trials = asyncio.Lock()
        self.turn = 0
        self.waiting = self.waiting_bytes = 0
        self.report_ill: Callable[[str], None] = lambda reason: None
        self.returns: Callable[[], bool] = lambda: False  # whether the server, away now, is back in a moment
        self.trouble: Callable[[], str] = lambda: ""  # why it fails to start again and again
        metrics.in_flight.set_function(lambda: self.in_flight)

    @property
    def in_flight(self) -> int:
        """Return the number of requests that the own server works on."""
        return len(self.life.flights) if self.life else 0

    # The server's life, as its keeper tells it.
    def begin(self, life: Life) -> None:
        """Note that the server answers."""
        self.life = life

    def end(self, death: Death) -> None:
        """Note that the server has died, or must end."""
        life, self.life = self.life, None
        if life and not life.death.done():
            life.death.set_result(death)
            life.http.abort()

    # Requests.
    async def run(self, call: Call[Result]) -> Result:
        """Return the answer to a request.

        Raises:
            Unavailable: nobody can take it now.
        """
        while True:
            self._check(call)
            if life := self.free:
                try:
                    return await self._fly(life, call)
                except Lost as lost:
                    if await self._suspect(call, life, lost):
                        return await self._try_again(call)
            try:
                return await self._hand_on(call)
            except Lost:
                await self.back(call.until, call.size)

    async def _suspect(self, call: Call[Any], life: Life, lost: Lost) -> bool:
        """Tell whether a lost request may have crashed its server; otherwise another instance may take it.

        Raises:
            Unavailable: no other may, since it was lost before.
        """
        sent, death = lost.sent, await life.cause(lost)
        log.warning(
            "lost a request",
            model=call.model,
            error=str(lost),
            death=death.reason if death else None,
            handed=call.handed,
        )
        if not sent or (life.ending.done() and death is life.ending.result()):
            return False  # no server has read it
        if call.lost or (call.handed and call.reads):
            raise Unavailable(GONE) if death is None or call.reads else self._condemn(call)
        call.lost = death is not None
        if call.handed:  # it waits for this server: the other guard knows nothing of the loss
            call.until = call.until or time.monotonic() + AWAY_SECONDS
        return not (call.reads or death is None or death.outside or self.suspicion.innocent(call.mark()))

    @property
    def free(self) -> Life | None:
        """Return the own server if it takes requests."""
        return None if self.stopping or self.trying else self.life

    async def back(self, until: float, size: int) -> None:
        """Wait until the own server, which is away for a moment, takes requests again. `until` is a time of
        time.monotonic(), 0 for no waiting; `size` is the bytes that wait with it.

        Raises:
            Unavailable: it is not away for a moment only, too many wait already, or it took too long.
        """
        if self.waiting < MOST_WAITING and self.waiting_bytes + size <= MOST_WAITING_BYTES:
            self.waiting, self.waiting_bytes = self.waiting + 1, self.waiting_bytes + size
            try:
                while self.returns() and time.monotonic() < until:
                    await asyncio.sleep(LOOK)  # first: that a server is gone is known a moment later
                    if self.free:
                        return
            finally:
                self.waiting, self.waiting_bytes = self.waiting - 1, self.waiting_bytes - size
        raise Unavailable(self.trouble() or NOBODY)

    def _check(self, call: Call[Any]) -> None:
        if self.suspicion.any and (seconds := self.suspicion.refused(call.mark())):
            self.metrics.refused.labels(call.model, "suspect").inc()
            raise Unavailable(
                "a server ended while it processed this very request; it is not retried for now",
                int(seconds) + 1,
            )

    async def _fly(self, life: Life, call: Call[Result]) -> Result:
        with self.flight(life, call):
            result = await call.send(life)
        self.suspicion.clear(call.mark())
        return result

    @contextmanager
    def flight(self, life: Life, call: Call[Any]) -> Iterator[None]:
        """Count a request as in flight."""
        life.flights.add(call)
        try:
            yield
        finally:
            life.flights.discard(call)

    async def _hand_on(self, call: Call[Result]) -> Result:
        """Forward it to another instance of the pool, once.

        Raises:
            Lost: there is none that could read it.
            Unavailable: it was handed on before, or lost with the other instance.
        """
        if call.handed and not call.until:
            raise Unavailable(NOBODY, unread=True)
        self.turn += 1
        for i in range(0 if call.handed else len(self.peers)):
            peer = self.peers[(self.turn + i) % len(self.peers)]
            self.metrics.handed_on.labels(call.model).inc()
            try:
                return await call.send(peer)
            except Lost as lost:
                if lost.sent:
                    raise Unavailable(GONE) from lost
        raise Lost("no other instance can be reached", sent=False)

    async def _try_again(self, call: Call[Result]) -> Result:
        """Run it alone on the own server when that is back; after AWAY_SECONDS others may join it."""
        mark, flight = call.mark(), None
        await self._tell(mark, SUSPECT_SECONDS)
        log.warning(
            "a request may have ended the server; it runs again alone", model=call.model, fingerprint=mark
        )
        try:
            async with asyncio.timeout(AWAY_SECONDS) as waiting, self.trials:
                self.trying = call
                while self.stopping or not (life := self.life) or life.flights:
                    if not self.returns():
                        raise Unavailable(GONE)
                    await asyncio.sleep(0.01)
                waiting.reschedule(None)
                flight = asyncio.ensure_future(self._fly(life, call))
                await asyncio.wait({flight}, timeout=AWAY_SECONDS)
                self.trying = None
            result = await flight
        except TimeoutError:
            raise Unavailable(
                "the server that processed this request was lost and is not back yet; try again"
            ) from None
        except Lost as lost:
            if lost.sent:
                raise self._condemn(call) from None
            await self._tell(mark, 0)
            raise Unavailable(NOBODY) from None
        except Unavailable:
            await self._tell(mark, 0)
            raise
        finally:
            if flight:
                flight.cancel()
            if self.trying is call:
                self.trying = None
        await self._tell(mark, 0)
        return result

    def _condemn(self, call: Call[Any]) -> Unavailable:
        mark = call.mark()
        self.metrics.refused.labels(call.model, "ended a server").inc()
        log.error(
            "a request was in flight when a server died, twice; it is refused for a minute",
            model=call.model,
            fingerprint=mark,
        )
        task = asyncio.ensure_future(self._tell(mark, REFUSED_SECONDS))
        task.add_done_callback(lambda done: done.exception())
        return Unavailable(
            "two servers ended while they processed this very request; it is refused for a minute",
            int(REFUSED_SECONDS),
        )

    async def _tell(self, mark: str, seconds: float) -> None:
        """Quarantine a fingerprint in the whole pool; 0 seconds ends that."""
        self.quarantine(mark, seconds)
        headers = {"X-Conch-Fingerprint": mark, "X-Conch-Seconds": f"{seconds:g}"}
        for peer in self.peers:
            with suppress(Lost, TimeoutError):
                async with asyncio.timeout(1):
                    await (await peer.http.request("POST", "/guard/suspect", headers)).body()

    def quarantine(self, mark: str, seconds: float) -> None:
        """Apply what another guard of the pool, or this one, reports of a request."""
        if seconds > 0:
            self.suspicion.refuse(mark, seconds)
        else:
            self.suspicion.clear(mark)
