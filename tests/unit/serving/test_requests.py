"""The façades' pool: bounded, never waiting, every request answered once."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

from serving.errors import QueueFull
from serving.triton.requests import RequestPool


@dataclass
class Asked:
    """A request that is its own sender."""

    cancelled: bool = False
    done: threading.Event = field(default_factory=threading.Event)
    said: list[object] = field(default_factory=list)

    def get_response_sender(self) -> Asked:
        return self

    def is_cancelled(self) -> bool:
        return self.cancelled

    def say(self, what: object) -> None:
        self.said.append(what)
        self.done.set()


def test_one_too_many_is_refused_and_places_come_back() -> None:
    """While two are worked on the third is told so at once; afterwards there is room again."""
    go = threading.Event()

    def answer(request: Asked, sender: Asked) -> None:
        go.wait(10)
        sender.say("words")

    pool = RequestPool(answer, lambda sender, error: sender.say(error), places=2)  # type: ignore[arg-type, attr-defined]
    asked = [Asked() for _ in range(3)]
    pool.submit(asked)  # type: ignore[arg-type]
    assert asked[2].done.wait(1)
    assert isinstance(asked[2].said[0], QueueFull)
    go.set()
    assert all(one.done.wait(10) for one in asked)
    assert pool.places.acquire(timeout=10)
    pool.places.release()
    later = Asked()
    pool.submit([later])  # type: ignore[list-item]
    assert later.done.wait(10)
    assert [one.said for one in (*asked[:2], later)] == [["words"]] * 3
    pool.close()


def test_a_failure_is_the_requests_own() -> None:
    """An error, or a client that has gone, is answered and blocks nobody."""

    def answer(request: Asked, sender: Asked) -> None:
        raise ValueError("broken")

    pool = RequestPool(answer, lambda sender, error: sender.say(error), places=1)  # type: ignore[arg-type, attr-defined]
    for one, says in ((Asked(), "broken"), (Asked(cancelled=True), "cancelled")):
        assert pool.places.acquire(timeout=10)
        pool.places.release()
        pool.submit([one])  # type: ignore[list-item]
        assert one.done.wait(10)
        assert [str(error) for error in one.said] == [says]
    pool.close()
