"""Keep one tritonserver running: start it, probe it with a tiny real inference, and replace it when it is
unhealthy.

Triton never notices a dead or hung Python stub (ready stays 200), so its own readiness proves nothing. A
server is ended by its death or that of a stub or rank, a stopped process, an answer that says that a stub is
unhealthy, or a probe that fails while no request succeeds and no engine works: while long texts take all
rows, or many sounds are encoded on a CPU, a probe waits for as long as they take.

A server that was asked to end from outside (SIGTERM) stays ready on its connections and waits up to 30 s for
their end; it only refuses new ones. It is drained as in a planned restart.
"""

from __future__ import annotations

import asyncio
import json
import signal
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from conch.bundle import Manifest
from conch.http_client import HttpClient, Lost

from ..journal import Journal
from ..life import Death, Life
from ..proxy.relay import Relay
from .bundle import BundleRefused, probe_body
from .failures import Failures
from .server import DRAIN, Server

START_PROBE = 0.2
CHECK, IDLE_CHECK = 1.0, 3.0  # between two looks, while there are requests and while there are none
PROBE, IDLE_PROBE = 5.0, 30.0  # without a success, after so long comes a probe
PROBE_TIMEOUT = 30.0
WORKS = 0.25  # of a CPU in use by one process shows that an engine works, as it does on encoders for minutes
START_TIMEOUT = 600.0
FAILED_STARTS = 3
OUTSIDE = (-signal.SIGKILL, -signal.SIGTERM, 0)  # 0: it was asked to end, and was idle
LIVE = "/v2/health/live"
SETTLE = 0.05  # a tritonserver that finds a connection when it is asked to end sleeps a second first


class Keeper:
    """The server of one instance.

    Attributes:
        make: prepares a run of it and says how to probe it
        connect: makes a gRPC channel to it
        journal: records events
        probed: when the last probe ended (Unix time), how many seconds it took, and what was wrong (None:
            nothing); None before the first
    """

    def __init__(
        self,
        relay: Relay,
        check: Callable[[], Manifest],
        make: Callable[[Manifest, Callable[[str, int | None], None]], Server],
        connect: Callable[[str], Any],
        sign: Path | None,
        journal: Journal,
        kept: Failures,
    ) -> None:
        self.relay, self.check, self.make, self.connect, self.sign = relay, check, make, connect, sign
        self.journal, self.starts, self.deaths = journal, 0, 0
        self.served, self.failures, self.kept = False, 0, kept
        self.probed: dict[str, Any] | None = None
        self.manifest: Manifest
        self.stop_asked, self.restart_asked = asyncio.Event(), asyncio.Event()
        self.illness: asyncio.Future[Death] | None = None
        self.last_good = 0.0
        relay.report_ill, relay.returns, relay.trouble = self.ill, self.returns, lambda: kept.told
        self.close_listeners: Callable[[], None] = lambda: None

    @property
    def state(self) -> str:
        """Return what the server is doing."""
        if self.relay.stopping:
            return "draining"
        return "serving" if self.relay.life else "failing" if self.kept.told else "starting"

    def returns(self) -> bool:
        """Tell whether the server, if it is away, will be back in a moment: it has served, and its next start
        has not failed.
        """
        return self.served and not self.failures and not self.stop_asked.is_set()

    def answered(self) -> None:
        """Note that a request has succeeded."""
        self.last_good = time.monotonic()

    def ill(self, reason: str, status: int | None = None) -> None:
        """Mark the server for replacement; `status` is that of a process that ended by itself."""
        if self.illness and not self.illness.done():
            self.illness.set_result(Death(reason, outside=status in OUTSIDE))

    async def run(self) -> int:
        """Serve until told to stop (0), or until the server repeatedly fails to start (1). When a restart is
        requested, or the server was asked to end, it drains one server and starts the next; meanwhile
        requests go to another instance.

        Raises:
            BundleRefused: the bundle must not be served when the first server is about to start.
        """
        self._unsign()
        self.manifest = self.check()
        while self.failures < FAILED_STARTS and not self.stop_asked.is_set():
            self.restart_asked.clear()  # whatever starts now is new
            self.illness = asyncio.get_running_loop().create_future()
            server = self.make(self.manifest, self.ill)
            server.start()
            self.relay.metrics.starts.inc()
            self.starts += 1
            self.journal.note("started")
            life = Life(HttpClient(server.addresses.http), self.connect(server.addresses.grpc))
            try:
                await self._serve(server, life)
            except BaseException:  # a fault of our own: no server is left running
                await server.end(0)
                raise
            self.failures += life is not self.relay.life
            if self.illness.done():
                await self._bury(server, life, self.illness.result())
                continue
            self.failures = 0
            if self.stop_asked.is_set():
                self.close_listeners()
            await self._drain(server, life)
        self.close_listeners()
        return 0 if self.stop_asked.is_set() else 1

    async def _serve(self, server: Server, life: Life) -> None:
        """Serve until the server is unhealthy, it or the guard is asked to end, or a restart is requested
        with a bundle that may be served.
        """
        assert self.illness
        watching = asyncio.ensure_future(self._live(server, life))
        try:
            while not (self.illness.done() or self.stop_asked.is_set() or life.ending.done()):
                asked = [asyncio.ensure_future(one.wait()) for one in (self.stop_asked, self.restart_asked)]
                waiting: set[asyncio.Future[Any]] = {self.illness, life.ending, watching, *asked}
                await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                for task in asked:
                    task.cancel()
                if watching.done():
                    watching.result()  # raises: it ends only by a fault of our own
                if self.restart_asked.is_set() and await self._renewed() and not self.illness.done():
                    return
        finally:
            watching.cancel()
            with suppress(asyncio.CancelledError, Exception):
                await watching

    async def _renewed(self) -> bool:
        """Read the bundle again; one that must not be served leaves the running server as it is."""
        self.restart_asked.clear()
        try:
            self.manifest = await asyncio.to_thread(self.check)
        except BundleRefused as refused:
            self.relay.metrics.kept.inc()
            self.journal.note("not restarted", error=True, reason=str(refused))
            return False
        return True

    async def _live(self, server: Server, life: Life) -> None:
        """Wait until the server answers, then check it periodically. Ends only by being cancelled."""
        started = time.monotonic()
        while trouble := await self._probe(life.http, PROBE_TIMEOUT):
            if time.monotonic() - started > START_TIMEOUT:
                self.ill(f"not ready within {START_TIMEOUT:.0f} s: {trouble}")
            await asyncio.sleep(START_PROBE)
        server.watch_parts()
        self.relay.begin(life)
        self.served, self.failures = True, 0
        self.kept.clear()
        self.relay.metrics.serving.set(1)
        self.answered()
        if self.sign:
            self.sign.touch()
        seconds = round(time.monotonic() - started, 1)
        self.journal.note("serving", model=server.instance.model_id, seconds=seconds)
        while True:
            busy = bool(life.flights) or time.monotonic() - self.last_good < CHECK
            await asyncio.sleep(CHECK if busy else IDLE_CHECK)
            await self._check(server, life)

    async def _check(self, server: Server, life: Life) -> None:
        """Probe when nothing has succeeded for a while, sooner while requests wait. While requests succeed or
        the engine works, a slow probe only means load, and so does a full queue.
        """
        if (pid := server.stopped()) is not None:
            await asyncio.sleep(2 * CHECK)
            if server.stopped() == pid:
                self.ill(f"process {pid} has been stopped by a signal")
            return
        if await self._ends(life):
            return
        if time.monotonic() - self.last_good < (PROBE if life.flights else IDLE_PROBE):
            return
        before, progress, computed = self.last_good, await server.progress(), server.computed()
        trouble = await self._probe(life.http, PROBE_TIMEOUT)
        goes_on = trouble == "timeout" and (
            self.last_good > before or changed(progress, await server.progress())
        )
        if trouble is None or trouble.startswith("503") or goes_on:
            self.answered()
            return
        works = any(
            used - computed.get(pid, used) > WORKS * PROBE_TIMEOUT for pid, used in server.computed().items()
        )
        if trouble != "timeout" or not works or time.monotonic() - before > START_TIMEOUT:
            self.ill(f"the probe failed: {trouble}")

    async def _ends(self, life: Life) -> bool:
        """Tell whether the server was asked to end from outside: it is alive, and has closed two new
        connections.
        """
        assert self.illness
        with suppress(TimeoutError):
            async with asyncio.timeout(CHECK):
                if await life.http.admits(LIVE) or await life.http.admits(LIVE) or self.illness.done():
                    return False
            self.deaths += 1
            self.relay.metrics.deaths.labels("from outside").inc()
            self.journal.note("the server was terminated by another process", error=True)
            life.ending.set_result(Death("terminated by another process", outside=True))
            return True
        return False

    async def _probe(self, http: HttpClient, seconds: float) -> str | None:
        """Return None if a real inference succeeds, otherwise what happened."""
        started = time.monotonic()
        trouble = await self._tried(http, seconds)
        took = round(time.monotonic() - started, 4)
        self.probed = {"time": round(time.time(), 3), "seconds": took, "trouble": trouble}
        return trouble

    async def _tried(self, http: HttpClient, seconds: float) -> str | None:
        body = json.dumps(probe_body(self.manifest.probe)).encode()
        try:
            async with asyncio.timeout(seconds):
                answer = await http.request(
                    "POST",
                    f"/v2/models/{self.manifest.probe.model}/infer",
                    {"Content-Type": "application/json"},
                    [body],
                )
                text = await answer.body()
        except TimeoutError:
            return "timeout"
        except Lost as lost:
            return str(lost)
        return None if answer.status == 200 else f"{answer.status} {text[:200].decode('utf-8', 'replace')}"

    async def _bury(self, server: Server, life: Life, death: Death) -> None:
        self.deaths += 1
        why = await server.cause() if life is not self.relay.life else ""
        reason = f"{death.reason}: {why}" if why else death.reason
        if life is not self.relay.life:
            self.kept.note(why or reason)
        self.journal.note("the server is replaced", error=True, reason=reason, in_flight=len(life.flights))
        self.relay.metrics.deaths.labels("from outside" if death.outside else "by itself").inc()
        self._out_of_service(life, death)
        await server.end(0)
        await life.grpc.close()

    async def _drain(self, server: Server, life: Life) -> None:
        """Finish requests in flight while new ones go to another instance, then ask the server to end."""
        self.relay.stopping = True
        self.journal.note("draining", in_flight=len(life.flights))
        self._unsign()
        deadline = time.monotonic() + DRAIN
        while life.flights and time.monotonic() < deadline and not (self.illness and self.illness.done()):
            await asyncio.sleep(0.02)
        life.http.let_go()
        await life.grpc.close()
        await asyncio.sleep(SETTLE)
        server.terminate()
        await server.end(max(5.0, deadline - time.monotonic()))
        self._out_of_service(life, Death("stopped", outside=True))
        self.relay.stopping = self.stop_asked.is_set()

    def _unsign(self) -> None:
        if self.sign:
            self.sign.unlink(missing_ok=True)

    def _out_of_service(self, life: Life, death: Death) -> None:
        self.relay.metrics.serving.set(0)
        self._unsign()
        self.relay.end(death) if life is self.relay.life else None


def changed(before: Mapping[str, bytes], after: Mapping[str, bytes]) -> bool:
    """Tell whether one of the values that are in both is another."""
    return any(before[name] != after[name] for name in before.keys() & after.keys())
