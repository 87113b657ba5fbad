"""Where requests go when servers die, with servers that are functions."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from itertools import repeat
from typing import Any

import pytest

from conch.http_client import Lost
from ops.guard import life
from ops.guard.metrics import GuardMetrics
from ops.guard.proxy import relay as relaying
from ops.guard.proxy.relay import Call, Death, Life, Relay, Unavailable

Step = Callable[[], Coroutine[Any, Any, str]]
OUTSIDE, CRASH = Death("killed", outside=True), Death("status -11", outside=False)


class Http:
    """What the relay does with a server's client apart from sending: telling another guard, and breaking
    connections.
    """

    def __init__(self, told: Callable[[str, float], None] | None = None) -> None:
        self.told = told

    async def request(self, _method: str, _path: str, headers: dict[str, str]) -> Http:
        assert self.told
        self.told(headers["X-Conch-Fingerprint"], float(headers["X-Conch-Seconds"]))
        return self

    async def body(self) -> bytes:
        return b""

    def abort(self) -> None:
        """Nothing is open."""


class Guard:
    """One instance: its relay and its server's life; a server is always started again."""

    def __init__(self) -> None:
        self.relay = Relay([], GuardMetrics())
        self.relay.returns = lambda: True
        self.http, self.grpc = Http(self.relay.quarantine), None

    def live(self) -> Guard:
        """Its server is there, for the first time or again."""
        self.relay.begin(Life(Http(), None))  # type: ignore[arg-type]
        return self

    async def lost(self, death: Death) -> str:
        """The server dies with what it has just been sent."""
        self.relay.end(death)
        return await read()

    def ask(
        self, mark: str, *own: Step, theirs: Step | None = None, waits: bool = False, **known: bool
    ) -> asyncio.Future[str]:
        """A request with this fingerprint: what its server does, always the same or one of `own` at each try,
        what another instance does, and what is known of it (see `Call`).
        """
        steps = repeat(own[0]) if len(own) == 1 else iter(own)

        async def send(target: Any) -> str:
            if isinstance(target, Guard):
                assert theirs
                return await theirs()
            return await next(steps)()

        until = time.monotonic() + relaying.AWAY_SECONDS if waits else 0.0
        return asyncio.ensure_future(
            self.relay.run(Call("m", lambda: mark, send, until=until, size=1, **known))
        )


def pair() -> tuple[Guard, Guard]:
    one, two = Guard().live(), Guard().live()
    one.relay.peers, two.relay.peers = [two], [one]  # type: ignore[list-item]
    return one, two


async def fine() -> str:
    return "fine"


async def read() -> str:
    raise Lost("broken")


async def away() -> str:
    raise Lost("cannot be reached", sent=False)


async def refused(said: str, asked: Awaitable[str]) -> None:
    with pytest.raises(Unavailable, match=said):
        await asked


async def test_killed_from_outside_is_handed_on_at_once() -> None:
    one, _ = pair()
    assert await one.ask("a", partial(one.lost, OUTSIDE), theirs=fine) == "fine"
    assert await one.ask("b", fine, theirs=fine) == "fine", "handed on while the server is away"


async def test_a_request_that_ends_its_server_never_reaches_another() -> None:
    """It runs once more, on the same server, which is lost anyway; then it is refused in the whole pool."""
    one, two = pair()
    tried: list[str] = []

    async def poison() -> str:
        tried.append("own")
        return await one.lost(CRASH)

    task = one.ask("p", poison)
    await asyncio.sleep(0.05)
    await refused("not retried for now", two.ask("p", fine))
    assert await two.ask("q", fine) == "fine", "others are served meanwhile"
    one.live()
    await refused("refused for a minute", task)
    assert tried == ["own", "own"]
    one.live()
    await asyncio.sleep(0.05)
    for guard in (one, two):
        await refused("not retried", guard.ask("p", fine))
    assert two.relay.life, "the other instance was never touched"


async def test_an_innocent_suspect_is_answered_and_cleared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own time does not count as waiting, and it is not alone for longer than that."""
    monkeypatch.setattr(relaying, "AWAY_SECONDS", 0.1)
    one, two = pair()
    ends = asyncio.Event()

    async def long() -> str:
        await ends.wait()
        return "fine"

    task = one.ask("a", partial(one.lost, CRASH), long)
    await asyncio.sleep(0.05)
    one.live()
    await asyncio.sleep(0.05)
    assert one.relay.free is None
    await asyncio.sleep(0.1)
    assert one.relay.free
    ends.set()
    assert await task == "fine"
    assert await two.ask("a", fine) == "fine"
    assert one.relay.trying is None


async def test_what_was_answered_before_is_handed_on_even_after_a_crash() -> None:
    one, _ = pair()
    assert await one.ask("a", fine) == "fine"
    assert await one.ask("a", partial(one.lost, CRASH), theirs=fine) == "fine"


async def test_whoever_is_lost_twice_is_refused() -> None:
    """Handed on after a kill, and the next server dies with it, too: refused everywhere, handed on no
    further.
    """
    one, two = pair()
    await refused("refused for a minute", two.ask("a", partial(two.lost, OUTSIDE), handed=True, lost=True))
    await asyncio.sleep(0.05)
    await refused("not retried", one.ask("a", fine))


@pytest.mark.parametrize("death", [OUTSIDE, CRASH])
async def test_what_another_instance_could_not_take_is_lost_once(death: Death) -> None:
    """It waits for the server that it was handed to; only if that dies again it is refused."""
    for again in (False, True):
        _, two = pair()
        task = two.ask(
            "a", partial(two.lost, death), partial(two.lost, death) if again else fine, handed=True
        )
        await asyncio.sleep(0.05)
        assert not task.done()
        two.live()
        if again:
            await refused("refused for a minute", task)
        else:
            assert await task == "fine"


async def test_a_forwarded_request_is_not_run_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a server that lives and breaks each connection."""
    monkeypatch.setattr(relaying, "AWAY_SECONDS", 0.3)
    monkeypatch.setattr(life, "CAUSE_SECONDS", 0.01)
    _, two = pair()
    async with asyncio.timeout(5):
        await refused("no instance", two.ask("a", read, handed=True))


@pytest.mark.parametrize("death", [OUTSIDE, CRASH])
async def test_a_request_that_a_guard_was_lost_with_costs_one_more_server(death: Death) -> None:
    """Nginx says so. It is handed on where the own server is away; once another is lost with it, it is
    refused everywhere.
    """
    one, two = pair()
    await refused("refused for a minute", one.ask("a", partial(one.lost, death), theirs=fine, lost=True))
    await asyncio.sleep(0.05)
    await refused("not retried", two.ask("a", fine))
    assert await one.ask("b", fine, theirs=fine, lost=True) == "fine"
    two.live()
    assert await two.ask("c", unread(two), theirs=fine, lost=True) == "fine"


def unread(guard: Guard) -> Callable[[], Coroutine[Any, Any, str]]:
    """A new connection that a server closes which was asked to end; the keeper notices a moment later."""

    async def closed() -> str:
        life = guard.relay.life
        assert life
        asyncio.get_running_loop().call_later(
            0.05, lambda: life.ending.done() or life.ending.set_result(OUTSIDE)
        )
        raise Lost("closed", fresh=True)

    return closed


@pytest.mark.parametrize(("handed", "lost"), [(False, True), (True, False)])
async def test_what_a_server_never_had_is_not_blamed(*, handed: bool, lost: bool) -> None:
    """Nobody could connect to it: another has it, or 503 where it was handed on before; the next may try."""
    one, two = pair()
    task = one.ask("a", away, theirs=fine, handed=handed, lost=lost)
    if handed:
        await refused("no instance", task)
    else:
        assert await task == "fine"
    for guard in (one, two):
        assert await guard.ask("a", fine) == "fine"


async def test_what_an_ending_server_does_not_read_is_handed_on_while_it_lives() -> None:
    """At once, not when it is dead; what it had read already waits for its death."""
    one, _ = pair()
    assert await one.ask("a", unread(one), theirs=fine) == "fine"
    assert one.relay.life
    task = one.ask("b", read, theirs=fine)
    await asyncio.sleep(0.1)
    assert not task.done()
    one.relay.end(OUTSIDE)
    assert await task == "fine"


async def test_what_an_ending_server_does_not_read_is_not_blamed() -> None:
    """It came from another instance, which was lost: nobody takes it now, and it may come again."""
    one, two = pair()
    await refused("no instance", two.ask("a", unread(two), handed=True))
    assert await one.ask("a", fine) == "fine"


async def test_suspects_run_alone_one_after_the_other() -> None:
    one, _ = pair()
    inside: list[str] = []
    most = 0

    async def first(name: str) -> str:
        inside.append(name)
        await asyncio.sleep(0.05)
        return await one.lost(CRASH)

    async def again(name: str) -> str:
        nonlocal most
        inside.append(name)
        most = max(most, len(inside))
        await asyncio.sleep(0.05)
        inside.remove(name)
        return name

    tasks = [one.ask(name, partial(first, name), partial(again, name)) for name in "abc"]
    await asyncio.sleep(0.2)
    inside.clear()
    one.live()
    assert await asyncio.gather(*tasks) == ["a", "b", "c"]
    assert most == 1


async def test_an_unread_request_keeps_its_mark_and_is_no_suspect() -> None:
    """A guard was lost with it, the own server has crashed and is not reached, the next is lost with it."""
    one = Guard().live()

    async def crashed() -> str:
        one.relay.end(CRASH)
        return await away()

    task = one.ask("a", crashed, partial(one.lost, OUTSIDE), fine, lost=True, waits=True)
    await asyncio.sleep(0.01)
    assert not one.relay.suspicion.any
    one.live()
    await refused("refused for a minute", task)


async def test_a_server_that_cannot_be_reached_is_not_asked_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its death is not known: with time between the tries, and until the request has waited long enough."""
    monkeypatch.setattr(relaying, "AWAY_SECONDS", 0.5)
    one, tries = Guard().live(), 0
    assert one.relay.life

    async def counted() -> str:
        nonlocal tries
        tries += 1
        raise Lost("cannot be reached", sent=False, fresh=True)

    one.relay.life.ending.set_result(OUTSIDE)  # what was lost is looked into at once
    await refused("no instance", one.ask("a", counted, waits=True))
    assert 2 <= tries <= 12


async def test_who_reads_is_never_blamed() -> None:
    """Health and metadata have one fingerprint; a request that was lost twice with a server is told so."""
    one, _ = pair()
    for death in (OUTSIDE, CRASH):
        assert await one.ask("", partial(one.lost, death), theirs=fine, reads=True) == "fine"
        one.live()
        await refused("were lost", one.ask("", partial(one.lost, death), handed=True, reads=True))
        one.live()
    assert not one.relay.suspicion.any


async def test_a_suspect_is_let_go_when_its_server_does_not_return() -> None:
    """And nobody is blamed for what was not tried."""
    one = Guard().live()
    task = one.ask("a", partial(one.lost, CRASH))
    await asyncio.sleep(0.05)
    one.relay.returns = lambda: False
    await refused("were lost", task)
    assert not one.relay.suspicion.any


async def test_nobody_there() -> None:
    """Without another instance, and for what another guard has handed on: 503 at once."""
    await refused("no instance", Guard().ask("a", fine))
    one, _ = pair()
    one.relay.end(OUTSIDE)
    await refused("no instance", one.ask("a", fine, theirs=fine, handed=True))


async def test_a_pool_of_one_waits_for_its_server() -> None:
    """What was in flight when it was killed, what came while it was away, and what came while it drained."""
    one = Guard().live()
    flown = one.ask("a", partial(one.lost, OUTSIDE), fine, waits=True)
    await asyncio.sleep(0.01)
    came = one.ask("b", fine, waits=True)
    await asyncio.sleep(0.1)
    assert one.relay.waiting == 2
    await refused("no instance", one.ask("c", fine, waits=False))
    one.live()
    one.relay.stopping = True
    drained = one.ask("d", fine, waits=True)
    await asyncio.sleep(0.1)
    assert not any(task.done() for task in (flown, came, drained))
    one.relay.stopping = False
    assert await asyncio.gather(flown, came, drained) == ["fine"] * 3
    assert one.relay.waiting == 0


async def test_a_pool_of_one_is_lost_twice_at_most() -> None:
    one = Guard().live()
    task = one.ask("a", partial(one.lost, OUTSIDE), waits=True)
    await asyncio.sleep(0.01)
    one.live()
    await refused("refused for a minute", task)


async def test_nobody_waits_for_a_server_that_does_not_return(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not started again, or its start has failed; or it takes too long; or too many wait."""
    one = Guard().live()
    one.relay.end(OUTSIDE)
    task = one.ask("a", fine, waits=True)
    await asyncio.sleep(0.01)
    monkeypatch.setattr(relaying, "MOST_WAITING", 1)
    await refused("no instance", one.ask("b", fine, waits=True))
    one.relay.returns = lambda: False
    await refused("no instance", task)
    one.relay.returns = lambda: True
    monkeypatch.setattr(relaying, "MOST_WAITING_BYTES", 0)
    await refused("no instance", one.ask("d", fine, waits=True))
    monkeypatch.undo()
    monkeypatch.setattr(relaying, "AWAY_SECONDS", 0.1)
    await refused("no instance", one.ask("c", fine, waits=True))


async def test_another_instance_comes_before_the_own_return() -> None:
    """One that is away, too, has had nothing: then the own server's return is waited for."""
    one, _ = pair()
    one.relay.end(OUTSIDE)
    assert await one.ask("a", fine, theirs=fine, waits=True) == "fine"
    task = one.ask("b", fine, theirs=away, waits=True)
    await asyncio.sleep(0.1)
    assert not task.done()
    one.live()
    assert await task == "fine"
