"""Responses of a streaming request to the engine model: in order, and none is lost in silence."""

from __future__ import annotations

import threading
from concurrent.futures import Executor, ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from serving.engine.answers import Answers
from serving.engine.endpoint import EngineReply
from serving.engine.jobs import Job
from serving.engine.sampling import Hypothesis, Sampling
from serving.errors import ABORT_SUPPORTED
from tests.fakes.triton_python import UTILS

FINAL = UTILS.TRITONSERVER_RESPONSE_COMPLETE_FINAL


class Sender:
    """Triton's; `may` holds up each response, and those numbered in `fails` cannot be sent."""

    def __init__(self, fails: set[int]) -> None:
        self.fails, self.calls, self.closed = fails, 0, False
        self.waits, self.may = threading.Event(), threading.Event()
        self.sent: list[tuple[list[int] | str, int]] = []

    def send(self, response: Any, flags: int = 0) -> None:
        self.waits.set()
        assert self.may.wait(10)
        assert not self.closed
        self.calls += 1
        self.closed = bool(flags)  # first of all, as Triton's does
        if self.calls in self.fails:
            raise RuntimeError("no memory")
        shown = response.error.message if response.error else response.arrays["output_ids"].ravel().tolist()
        self.sent.append((shown, flags))


def replied(
    fails: set[int], *, streaming: bool = True, logits: bool = False, parameters: str = "{}"
) -> tuple[EngineReply, Sender, Executor]:
    sender, sending = Sender(fails), ThreadPoolExecutor(1)
    request: Any = SimpleNamespace(
        get_response_sender=lambda: sender, requested_output_names=tuple, parameters=lambda: parameters
    )
    reply = EngineReply(request, UTILS, sending)
    sampling = Sampling(max_tokens=9, end_id=-1, keep_logits=logits)
    reply.answers = Answers(Job((1, 2), sampling, reply, np.zeros(1), streaming=streaming))
    return reply, sender, sending


def so_far(*ids: int) -> list[Hypothesis]:
    return [Hypothesis(ids)]


def test_steps_do_not_wait_for_responses() -> None:
    """Tokens that are made while a response is sent come together; the last response has the final flag."""
    reply, sender, sending = replied(set())
    reply.update(so_far(5))
    assert sender.waits.wait(10)
    reply.update(so_far(5, 6))
    reply.update(so_far(5, 6, 7))
    reply.finish(so_far(5, 6, 7, 8))
    assert not sender.sent
    sender.may.set()
    sending.shutdown()
    assert sender.sent == [([5], 0), ([6, 7], 0), ([8], FINAL)]


def test_without_a_stream_the_answer_is_sent_at_once() -> None:
    reply, sender, _ = replied(set(), streaming=False)
    sender.may.set()
    reply.finish(so_far(5, 6))
    assert sender.sent == [([5, 6], FINAL)]
    assert reply.answers is None


def test_logits_are_sent_token_by_token() -> None:
    """Those of many tokens would be megabytes."""
    reply, sender, _ = replied(set(), logits=True)
    sender.may.set()
    logits = (np.zeros(4, np.float32),)
    reply.update([Hypothesis((5,), logits=logits)])
    reply.finish([Hypothesis((5, 6), logits=logits * 2)])
    assert sender.sent == [([5], 0), ([6], FINAL)]


@pytest.mark.parametrize(
    ("parameters", "told"),
    [("{}", "no memory"), (f'{{"{ABORT_SUPPORTED}": "1"}}', [0])],
    ids=["an error", "a marker"],
)
def test_a_response_that_cannot_be_sent_fails_its_request(parameters: str, told: str | list[int]) -> None:
    """Rather than leaving a gap: at the next token, and at the end."""
    reply, sender, sending = replied({2}, parameters=parameters)
    sender.may.set()
    reply.update(so_far(5))
    sending.submit(int).result()
    reply.update(so_far(5, 6))
    reply.finish(so_far(5, 6, 7))
    sending.shutdown()
    first, (last, flags) = sender.sent
    assert first == ([5], 0) and flags == FINAL
    assert told in last if isinstance(last, str) else told == last
    with pytest.raises(RuntimeError, match="no memory"):
        reply.update(so_far(5, 6))


def test_a_last_response_that_cannot_be_made_is_an_error() -> None:
    reply, sender, sending = replied(set())
    sender.may.set()
    reply.finish(None)  # type: ignore[arg-type]
    sending.shutdown()
    ((message, flags),) = sender.sent
    assert isinstance(message, str) and message.startswith("INTERNAL: ") and flags == FINAL


def test_a_client_that_is_gone_holds_up_no_other() -> None:
    """A last response that cannot be sent: there is nobody to tell."""
    reply, sender, sending = replied({1})
    sender.may.set()
    reply.finish(so_far(5))
    assert sending.submit(int).result() == 0
    sending.shutdown()
    assert not sender.sent
