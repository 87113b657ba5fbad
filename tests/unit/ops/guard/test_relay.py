"""Where requests go when servers die, with servers that are functions."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import pytest

from conch.http_client import Lost
from ops.guard import life
from ops.guard.metrics import GuardMetrics
from ops.guard.proxy import relay as relaying
from ops.guard.proxy.relay import Call, Death, Life, Relay, Unavailable
from ops.guard.proxy.suspicion import Suspicion, fingerprint

OUTSIDE, CRASH = Death("killed", outside=True), Death("status -11", outside=False)


class Http:
    """What the relay does with a server's client apart from sending: telling another guard, and breaking
    connections.
    """

    def __init__(self, told: Callable[[str, float], None] | None = None) -> None:
        self.told, self.broken = told, False

    async def request(self, _method: str, _path: str, headers: dict[str, str]) -> Http:
        assert self.told
        self.told(headers["X-Conch-Fingerprint"], float(headers["X-Conch-Seconds"]))
        return self

    async def body(self) -> bytes:
        return b""

    def abort(self) -> None:
        self.broken = True


class Guard:
    """One instance: its relay and its server's life."""

    def __init__(self) -> None:
        self.relay = Relay([], GuardMetrics())
        self.relay.returns = lambda: True
        self.http, self.grpc = Http(self.relay.quarantine), None

    def live(self) -> Life:
        life = Life(Http(), None)  # type: ignore[arg-type]
        self.relay.begin(life)
        return life

    def die(self, death: Death) -> None:
        self.relay.end(death)


def pair() -> tuple[Guard, Guard]:
    one, two = Guard(), Guard()
    one.relay.peers, two.relay.peers = [two], [one]  # type: ignore[list-item]
    one.live()
    two.live()
    return one, two


def call(
    guard: Guard,
    other: Guard,
    mark: str,
    own: Callable[[], Coroutine[Any, Any, str]],
    theirs: Callable[[], Coroutine[Any, Any, str]] | None = None,
    *,
    handed: bool = False,
    lost: bool = False,
    waits: bool = False,
    reads: bool = False,
) -> Call[str]:
    async def send(target: Any) -> str:
        if target is other:
            assert theirs
            return await theirs()
        return await own()

    until = time.monotonic() + relaying.AWAY_SECONDS if waits else 0.0
    return Call("m", lambda: mark, send, handed, lost, until, 1, reads)


async def fine() -> str:
    return "fine"


def killing(guard: Guard, death: Death) -> Callable[[], Coroutine[Any, Any, str]]:
    async def lost() -> str:
        guard.die(death)
        raise Lost("broken")

    return lost


async def refused(said: str, asked: Awaitable[str]) -> None:
    with pytest.raises(Unavailable, match=said):
        await asked


async def test_killed_from_outside_is_handed_on_at_once() -> None:
    one, two = pair()
    assert await one.relay.run(call(one, two, "a", killing(one, OUTSIDE), fine)) == "fine"
    assert await one.relay.run(call(one, two, "b", fine, fine)) == "fine", (
        "handed on while the server is away"
    )


async def test_a_request_that_ends_its_server_never_reaches_another() -> None:
    """It runs once more, on the same server, which is lost anyway; then it is refused in the whole pool."""
    one, two = pair()
    tried: list[str] = []

    async def poison() -> str:
        tried.append("own")
        one.die(CRASH)
        raise Lost("broken")

    task = asyncio.ensure_future(one.relay.run(call(one, two, "p", poison)))
    await asyncio.sleep(0.05)
    await refused("not retried for now", two.relay.run(call(two, one, "p", fine)))
    assert await two.relay.run(call(two, one, "q", fine)) == "fine", "others are served meanwhile"
    one.live()
    await refused("refused for a minute", task)
    assert tried == ["own", "own"]
    one.live()
    await asyncio.sleep(0.05)
    for guard, other in ((one, two), (two, one)):
        with pytest.raises(Unavailable):
            await guard.relay.run(call(guard, other, "p", fine))
    assert two.relay.life, "the other instance was never touched"


async def test_an_innocent_suspect_is_answered_and_cleared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own time does not count as waiting, and it is not alone for longer than that."""
    monkeypatch.setattr(relaying, "AWAY_SECONDS", 0.1)
    one, two = pair()
    ends = asyncio.Event()

    async def long() -> str:
        await ends.wait()
        return "fine"

    answers = iter([killing(one, CRASH), long])
    task = asyncio.ensure_future(one.relay.run(call(one, two, "a", lambda: next(answers)())))  # noqa: PLW0108  # one step each time
    await asyncio.sleep(0.05)
    one.live()
    await asyncio.sleep(0.05)
    assert one.relay.free is None
    await asyncio.sleep(0.1)
    assert one.relay.free
    ends.set()
    assert await task == "fine"
    assert await two.relay.run(call(two, one, "a", fine)) == "fine"
    assert one.relay.trying is None


async def test_what_was_answered_before_is_handed_on_even_after_a_crash() -> None:
    one, two = pair()
    assert await one.relay.run(call(one, two, "a", fine)) == "fine"
    assert await one.relay.run(call(one, two, "a", killing(one, CRASH), fine)) == "fine"


async def test_whoever_is_lost_twice_is_refused() -> None:
    """Handed on after a kill, and the next server dies with it, too: refused everywhere, handed on no
    further.
    """
    one, two = pair()
    with pytest.raises(Unavailable, match="refused for a minute"):
        await two.relay.run(call(two, one, "a", killing(two, OUTSIDE), handed=True, lost=True))
    await asyncio.sleep(0.05)
    await refused("not retried", one.relay.run(call(one, two, "a", fine)))


@pytest.mark.parametrize("death", [OUTSIDE, CRASH])
async def test_what_another_instance_could_not_take_is_lost_once(death: Death) -> None:
    """It waits for the server that it was handed to; only if that dies again it is refused."""
    for again in (False, True):
        one, two = pair()
        dies = killing(two, death)
        steps = iter([dies, dies if again else fine])
        handed = call(two, one, "a", lambda steps=steps: next(steps)(), handed=True)
        task = asyncio.ensure_future(two.relay.run(handed))
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
    one, two = pair()

    async def broken() -> str:
        raise Lost("broken")

    with pytest.raises(Unavailable, match="no instance"):
        async with asyncio.timeout(5):
            await two.relay.run(call(two, one, "a", broken, handed=True))


@pytest.mark.parametrize("death", [OUTSIDE, CRASH])
async def test_a_request_that_a_guard_was_lost_with_costs_one_more_server(death: Death) -> None:
    """Nginx says so. It is handed on where the own server is away; once another is lost with it, it is
    refused everywhere.
    """
    one, two = pair()
    with pytest.raises(Unavailable, match="refused for a minute"):
        await one.relay.run(call(one, two, "a", killing(one, death), fine, lost=True))
    await asyncio.sleep(0.05)
    await refused("not retried", two.relay.run(call(two, one, "a", fine)))
    assert await one.relay.run(call(one, two, "b", fine, fine, lost=True)) == "fine"
    two.live()
    assert await two.relay.run(call(two, one, "c", unread(two), fine, lost=True)) == "fine"


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

    async def away() -> str:
        raise Lost("cannot be reached", sent=False)

    task = one.relay.run(call(one, two, "a", away, fine, handed=handed, lost=lost))
    if handed:
        await refused("no instance", task)
    else:
        assert await task == "fine"
    for guard, other in ((one, two), (two, one)):
        assert await guard.relay.run(call(guard, other, "a", fine)) == "fine"


async def test_what_an_ending_server_does_not_read_is_handed_on_while_it_lives() -> None:
    """At once, not when it is dead; what it had read already waits for its death."""
    one, two = pair()
    assert await one.relay.run(call(one, two, "a", unread(one), fine)) == "fine"
    assert one.relay.life

    async def read() -> str:
        raise Lost("broken")

    task = asyncio.ensure_future(one.relay.run(call(one, two, "b", read, fine)))
    await asyncio.sleep(0.1)
    assert not task.done()
    one.die(OUTSIDE)
    assert await task == "fine"


async def test_what_an_ending_server_does_not_read_is_not_blamed() -> None:
    """It came from another instance, which was lost: nobody takes it now, and it may come again."""
    one, two = pair()
    await refused("no instance", two.relay.run(call(two, one, "a", unread(two), handed=True)))
    assert await one.relay.run(call(one, two, "a", fine)) == "fine"


async def test_suspects_run_alone_one_after_the_other() -> None:
    one, two = pair()
    inside: list[str] = []
    most = 0

    async def first(name: str) -> str:
        inside.append(name)
        await asyncio.sleep(0.05)
        one.die(CRASH)
        raise Lost(name)

    async def again(name: str) -> str:
        nonlocal most
        inside.append(name)
        most = max(most, len(inside))
        await asyncio.sleep(0.05)
        inside.remove(name)
        return name

    def suspect(name: str) -> Call[str]:
        steps = iter([first, again])
        return call(one, two, name, lambda: next(steps)(name))

    tasks = [asyncio.ensure_future(one.relay.run(suspect(name))) for name in "abc"]
    await asyncio.sleep(0.2)
    inside.clear()
    one.live()
    assert await asyncio.gather(*tasks) == ["a", "b", "c"]
    assert most == 1


async def test_an_unread_request_keeps_its_mark_and_is_no_suspect() -> None:
    """A guard was lost with it, the own server has crashed and is not reached, the next is lost with it."""
    one = lonely()

    async def away() -> str:
        one.die(CRASH)
        raise Lost("cannot be reached", sent=False)

    steps = iter([away, killing(one, OUTSIDE), fine])
    marked = call(one, one, "a", lambda: next(steps)(), lost=True, waits=True)  # noqa: PLW0108  # one step each time
    task = asyncio.ensure_future(one.relay.run(marked))
    await asyncio.sleep(0.01)
    assert not one.relay.suspicion.any
    one.live()
    await refused("refused for a minute", task)


async def test_a_server_that_cannot_be_reached_is_not_asked_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its death is not known: with time between the tries, and until the request has waited long enough."""
    monkeypatch.setattr(relaying, "AWAY_SECONDS", 0.5)
    one, tries = lonely(), 0
    assert one.relay.life

    async def away() -> str:
        nonlocal tries
        tries += 1
        raise Lost("cannot be reached", sent=False, fresh=True)

    one.relay.life.ending.set_result(OUTSIDE)  # what was lost is looked into at once
    await refused("no instance", one.relay.run(call(one, one, "a", away, waits=True)))
    assert 2 <= tries <= 12


async def test_who_reads_is_never_blamed() -> None:
    """Health and metadata have one fingerprint; a request that was lost twice with a server is told so."""
    one, two = pair()
    for death in (OUTSIDE, CRASH):
        assert await one.relay.run(call(one, two, "", killing(one, death), fine, reads=True)) == "fine"
        one.live()
        with pytest.raises(Unavailable, match="were lost"):
            await one.relay.run(call(one, two, "", killing(one, death), handed=True, reads=True))
        one.live()
    assert not one.relay.suspicion.any


async def test_a_suspect_is_let_go_when_its_server_does_not_return() -> None:
    """And nobody is blamed for what was not tried."""
    one = lonely()
    task = asyncio.ensure_future(one.relay.run(call(one, one, "a", killing(one, CRASH))))
    await asyncio.sleep(0.05)
    one.relay.returns = lambda: False
    await refused("were lost", task)
    assert not one.relay.suspicion.any


async def test_nobody_there() -> None:
    """Without another instance, and for what another guard has handed on: 503 at once."""
    lonely = Guard()
    await refused("no instance", lonely.relay.run(call(lonely, lonely, "a", fine)))
    one, two = pair()
    one.die(OUTSIDE)
    await refused("no instance", one.relay.run(call(one, two, "a", fine, fine, handed=True)))


def lonely() -> Guard:
    """A pool of one, whose server is always started again."""
    guard = Guard()
    guard.live()
    return guard


async def test_a_pool_of_one_waits_for_its_server() -> None:
    """What was in flight when it was killed, what came while it was away, and what came while it drained."""
    one = lonely()
    steps = iter([killing(one, OUTSIDE), fine])
    flown = asyncio.ensure_future(
        one.relay.run(call(one, one, "a", lambda: next(steps)(), waits=True))  # noqa: PLW0108  # one step each time
    )
    await asyncio.sleep(0.01)
    came = asyncio.ensure_future(one.relay.run(call(one, one, "b", fine, waits=True)))
    await asyncio.sleep(0.1)
    assert one.relay.waiting == 2
    await refused("no instance", one.relay.run(call(one, one, "c", fine, waits=False)))
    one.live()
    one.relay.stopping = True
    drained = asyncio.ensure_future(one.relay.run(call(one, one, "d", fine, waits=True)))
    await asyncio.sleep(0.1)
    assert not any(task.done() for task in (flown, came, drained))
    one.relay.stopping = False
    assert await asyncio.gather(flown, came, drained) == ["fine"] * 3
    assert one.relay.waiting == 0


async def test_a_pool_of_one_is_lost_twice_at_most() -> None:
    one = lonely()
    dies = killing(one, OUTSIDE)
    task = asyncio.ensure_future(one.relay.run(call(one, one, "a", dies, waits=True)))
    await asyncio.sleep(0.01)
    one.live()
    await refused("refused for a minute", task)


async def test_nobody_waits_for_a_server_that_does_not_return(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not started again, or its start has failed; or it takes too long; or too many wait."""
    one = lonely()
    one.die(OUTSIDE)
    task = asyncio.ensure_future(one.relay.run(call(one, one, "a", fine, waits=True)))
    await asyncio.sleep(0.01)
    monkeypatch.setattr(relaying, "MOST_WAITING", 1)
    await refused("no instance", one.relay.run(call(one, one, "b", fine, waits=True)))
    one.relay.returns = lambda: False
    await refused("no instance", task)
    one.relay.returns = lambda: True
    monkeypatch.setattr(relaying, "MOST_WAITING_BYTES", 0)
    await refused("no instance", one.relay.run(call(one, one, "d", fine, waits=True)))
    monkeypatch.undo()
    monkeypatch.setattr(relaying, "AWAY_SECONDS", 0.1)
    await refused("no instance", one.relay.run(call(one, one, "c", fine, waits=True)))


async def test_another_instance_comes_before_the_own_return() -> None:
    """One that is away, too, has had nothing: then the own server's return is waited for."""
    one, two = pair()
    one.die(OUTSIDE)
    assert await one.relay.run(call(one, two, "a", fine, fine, waits=True)) == "fine"

    async def away() -> str:
        raise Lost("no server", sent=False)

    task = asyncio.ensure_future(one.relay.run(call(one, two, "b", fine, away, waits=True)))
    await asyncio.sleep(0.1)
    assert not task.done()
    one.live()
    assert await task == "fine"


def test_fingerprints() -> None:
    """Of all parts and the model; of long parts the ends and the length."""
    assert (
        fingerprint("m", [b"ab", b"c"]) != fingerprint("m", [b"a", b"bc"]) != fingerprint("n", [b"a", b"bc"])
    )
    long = bytes(300_000)
    assert fingerprint("m", [long]) != fingerprint("m", [long + b"\0"])
    assert fingerprint("m", [long]) != fingerprint("m", [b"\1" + long[1:]])


def test_suspicion_forgets() -> None:
    found = Suspicion()
    found.refuse("a", 0.01)
    assert found.refused("a")
    assert not found.innocent("a")
    found.clear("a")
    assert not found.refused("a")
    assert found.innocent("a")
