"""A server that somebody else has asked to end, as seen from its guard."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import uvloop

from conch.bundle import Probe
from conch.http_client import HttpClient
from ops.guard.journal import Journal
from ops.guard.metrics import GuardMetrics
from ops.guard.proxy.relay import Call, Relay
from ops.guard.supervise import keeper as keeping
from ops.guard.supervise.failures import Failures
from ops.guard.supervise.keeper import Keeper

ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nfine"


class Triton:
    """A tritonserver as 24.10 was seen to behave: asked to end, it closes new connections unread, serves
    those that it has as before, and ends when they are closed. It is also the run of it that a keeper
    handles. A request for /slow is answered after `slow`.
    """

    def __init__(self) -> None:
        self.asked, self.ended, self.slow = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self.open = 0
        self.asked_by_keeper = False

    async def listen(self) -> None:
        self.server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        host, port = self.server.sockets[0].getsockname()
        self.addresses = SimpleNamespace(http=f"{host}:{port}", grpc="")

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.asked.is_set():
            writer.close()
            return
        self.open += 1
        while head := await reader.readline():
            length = 0
            while (line := await reader.readline()) not in (b"\r\n", b""):
                if line.lower().startswith(b"content-length:"):
                    length = int(line.split(b":")[1])
            await reader.readexactly(length)
            if b"/slow" in head:
                await self.slow.wait()
            writer.write(ANSWER)
        self.open -= 1
        writer.close()

    instance = SimpleNamespace(model_id="m")
    keeper: Keeper

    def start(self) -> None:
        pass

    def watch_parts(self) -> None:
        pass

    def stopped(self) -> None:
        return None

    async def progress(self) -> dict[str, bytes]:
        return {}

    def computed(self) -> dict[int, float]:
        return {}

    async def cause(self) -> str:
        return ""

    def terminate(self) -> None:
        self.asked_by_keeper = True
        self.asked.set()

    async def end(self, seconds: float) -> None:
        async with asyncio.timeout(max(seconds, 0.01)):
            while self.open:
                await asyncio.sleep(0.01)
        self.server.close()
        self.ended.set()


class Elsewhere:
    """Another instance's guard: it is asked with `http` as a mark."""

    http, grpc = "elsewhere", None


class Channel:
    async def close(self) -> None:
        pass


def ask(path: str) -> Call[str]:
    async def send(target: Any) -> str:
        if target.http == "elsewhere":
            return "elsewhere"
        return (await (await target.http.request("GET", path, {})).body()).decode()

    return Call("m", lambda: path, send)


async def until(true: Any) -> None:
    async with asyncio.timeout(10):
        while not true():
            await asyncio.sleep(0.01)


@asynccontextmanager
async def keeping_up(
    monkeypatch: pytest.MonkeyPatch, *tritons: Triton, peers: Sequence[Any] = (), **seconds: float
) -> AsyncIterator[Keeper]:
    """A keeper that runs these servers one after the other; the first serves. `seconds`: its constants."""
    for name, value in {"CHECK": 0.1, **seconds}.items():
        monkeypatch.setattr(keeping, name, value)
    left = iter(tritons)
    manifest: Any = SimpleNamespace(probe=Probe("m", {}), serving=None)
    keeper = Keeper(
        Relay(list(peers), GuardMetrics()),
        lambda: manifest,
        lambda _manifest, _lost: next(left),  # type: ignore[arg-type,return-value]
        lambda _address: Channel(),
        None,
        Journal("triton-0"),
        Failures(Path("/nonexistent")),
    )
    for triton in tritons:
        await triton.listen()
        triton.keeper = keeper
    running = asyncio.ensure_future(keeper.run())
    await until(lambda: keeper.state == "serving")
    yield keeper
    keeper.stop_asked.set()
    assert await running == 0


def test_a_server_that_somebody_ends_is_drained_and_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it has in flight it finishes, whatever it does not read goes to another instance, and the next
    server is there long before the 30 s that Triton gives its connections.
    """

    async def check() -> None:
        one, two = Triton(), Triton()
        async with keeping_up(monkeypatch, one, two, peers=[Elsewhere()]) as keeper:
            relay = keeper.relay
            first = relay.life
            slow = asyncio.ensure_future(relay.run(ask("/slow")))
            await asyncio.sleep(0.05)
            one.asked.set()
            unread = [asyncio.ensure_future(relay.run(ask(f"/{n}"))) for n in range(5)]
            await until(lambda: relay.stopping)
            assert await relay.run(ask("/late")) == "elsewhere"
            assert not slow.done()
            answers = await asyncio.gather(*unread)
            assert set(answers) <= {"fine", "elsewhere"}
            assert "elsewhere" in answers, "one connection is kept; the others are new"
            one.slow.set()
            assert await slow == "fine", "not given up"
            await until(lambda: relay.life is not first and relay.life is not None)
            assert one.ended.is_set()
            assert one.asked_by_keeper
            assert await relay.run(ask("/")) == "fine"
            assert (keeper.starts, keeper.deaths) == (2, 1)
            events = [row["event"] for row in keeper.journal.events]
            assert "the server was terminated by another process" in events
            assert not relay.suspicion.any, "nobody is blamed"

    for run_in in (asyncio.run, uvloop.run):
        run_in(asyncio.wait_for(check(), 20))


class Hung(Triton):
    """One whose stub hangs when it is told: connections are admitted, inferences are not answered."""

    async def listen(self) -> None:
        await super().listen()
        self.hangs, self.probes = asyncio.Event(), 0

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while head := await reader.readline():
            await reader.readuntil(b"\r\n\r\n")
            self.probes += b"/infer" in head
            if self.hangs.is_set() and b"/v2/health/live" not in head:
                await asyncio.sleep(60)
            writer.write(ANSWER)
        writer.close()

    async def end(self, seconds: float) -> None:
        self.server.close()
        self.ended.set()


async def test_a_server_returns_until_its_next_start_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request that waits for it is let go then, or when the guard is asked to stop."""
    said: list[bool] = []

    class Watched(Hung):
        def start(self) -> None:
            said.append(self.keeper.returns())

    dead = Watched()
    async with keeping_up(monkeypatch, Watched(), dead, Watched()) as keeper:
        dead.server.close()
        keeper.ill("killed", -9)
        await until(lambda: keeper.starts == 2)
        keeper.ill("died while it started", 1)
        await until(lambda: keeper.starts == 3 and keeper.state == "serving")
        assert said == [False, True, False]
        assert keeper.returns()
        keeper.stop_asked.set()
        assert not keeper.returns()


async def test_probes_are_rare_until_a_request_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stub that hangs while nobody asks is found late; the first request that waits for it has it found."""
    one, two = Hung(), Triton()
    intervals = {"IDLE_CHECK": 0.1, "PROBE": 0.3, "IDLE_PROBE": 60, "PROBE_TIMEOUT": 0.3}
    async with keeping_up(monkeypatch, one, two, **intervals) as keeper:
        one.hangs.set()
        await asyncio.sleep(1)
        assert (one.probes, keeper.deaths) == (1, 0)
        asked = asyncio.ensure_future(keeper.relay.run(ask("/slow")))
        await until(lambda: keeper.deaths == 1)
        assert "the probe failed: timeout" in str(keeper.journal.events)
        two.slow.set()
        assert await asked == "fine"


@pytest.mark.parametrize(("works", "limit"), [(0, 600.0), (2, 0.1)])
async def test_a_server_whose_engine_works_is_left_alone(
    monkeypatch: pytest.MonkeyPatch, works: int, limit: float
) -> None:
    """Long texts keep a probe waiting while none has ended, and long sounds while one is encoded; once no
    step is made and nothing is computed, or only that for too long, the server hangs.
    """

    class Busy(Hung):
        steps, works = 0, 0

        async def progress(self) -> dict[str, bytes]:
            self.steps += self.works == 1
            return {"steps": b"%d" % self.steps}

        def computed(self) -> dict[int, float]:
            return {1: time.monotonic() if self.works == 2 else 0.0}

    one, two = Busy(), Triton()
    async with keeping_up(monkeypatch, one, two, PROBE=0.1, PROBE_TIMEOUT=0.2) as keeper:
        one.hangs.set()
        asked = asyncio.ensure_future(keeper.relay.run(ask("/slow")))
        for one.works in (1, 2):
            await until(lambda probes=one.probes: one.probes >= probes + 4)
            assert keeper.deaths == 0
        one.works = works
        monkeypatch.setattr(keeping, "START_TIMEOUT", limit)
        await until(lambda: keeper.deaths == 1)
        two.slow.set()
        assert await asked == "fine"


async def test_a_server_that_takes_connections_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """And the checks leave no connection open."""
    one = Triton()
    async with keeping_up(monkeypatch, one) as keeper:
        for _ in range(8):
            await asyncio.sleep(0.1)
            assert one.open <= 2
        assert keeper.deaths == 0


def test_a_new_connection_tells() -> None:
    """True where it is answered, False where it is closed unread; nobody there says nothing."""

    async def check() -> None:
        one = Triton()
        await one.listen()
        client = HttpClient(one.addresses.http)
        assert await client.admits("/")
        one.asked.set()
        assert not await client.admits("/")
        await one.end(5)
        assert await client.admits("/")

    for run_in in (asyncio.run, uvloop.run):
        run_in(asyncio.wait_for(check(), 20))
