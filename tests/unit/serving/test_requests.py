"""The façades' pool: bounded, never waiting, every request answered once."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from serving.triton.threaded import ThreadedEndpoint
from tests.fakes.triton_python import UTILS, request


class Sender:
    """A request's sender; what it was sent is `sent`."""

    def __init__(self, *, cancelled: bool = False) -> None:
        self.cancelled, self.done, self.sent = cancelled, threading.Event(), list[Any]()

    def is_cancelled(self) -> bool:
        return self.cancelled

    def send(self, response: Any, flags: int = 0) -> None:
        self.sent.append(response)
        self.done.set()


class Endpoint(ThreadedEndpoint):
    """Takes `most` requests at a time and answers each with what `reply` returns."""

    def __init__(self, most: int, reply: Callable[[], str]) -> None:
        self.most, self.reply = most, reply
        super().__init__(UTILS)

    def answer(self, request: Any, sender: Any) -> None:
        sender.send(self.reply())


def submitted(endpoint: Endpoint, *senders: Sender) -> None:
    requests = [request() for _ in senders]
    for one, sender in zip(requests, senders, strict=True):
        one.get_response_sender = lambda sender=sender: sender
    endpoint.execute(requests)


def test_one_too_many_is_refused_and_places_come_back() -> None:
    """While two are worked on the third is told so at once; afterwards there is room again."""
    go = threading.Event()

    def reply() -> str:
        go.wait(10)
        return "words"

    endpoint, asked, later = Endpoint(2, reply), [Sender() for _ in range(3)], Sender()
    submitted(endpoint, *asked)
    assert asked[2].done.wait(1)
    assert asked[2].sent[0].error.code == UTILS.TritonError.UNAVAILABLE
    go.set()
    assert all(one.done.wait(10) for one in asked)
    assert endpoint.places.acquire(timeout=10)
    endpoint.places.release()
    submitted(endpoint, later)
    assert later.done.wait(10)
    assert [one.sent for one in (*asked[:2], later)] == [["words"]] * 3
    endpoint.close()


def test_a_failure_is_the_requests_own() -> None:
    """An error, or a client that has gone, is answered and blocks nobody."""

    def reply() -> str:
        raise ValueError("broken")

    endpoint = Endpoint(1, reply)
    for sender, message in ((Sender(), "broken"), (Sender(cancelled=True), "cancelled")):
        assert endpoint.places.acquire(timeout=10)
        endpoint.places.release()
        submitted(endpoint, sender)
        assert sender.done.wait(10)
        assert [response.error.message for response in sender.sent] == [message]
    endpoint.close()
