"""Responses of the engine model: in order, on a thread of their own, and none is lost in silence."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from serving.engine.answers import Answers, WantedOutputs
from serving.engine.endpoint import EngineReply
from serving.engine.jobs import Job
from serving.engine.sampling import Hypothesis, Sampling
from serving.engine.sending import Sending
from tests.fakes.triton_python import InferenceResponse, Tensor, TritonError

FINAL = 1
PB: Any = SimpleNamespace(
    TRITONSERVER_RESPONSE_COMPLETE_FINAL=FINAL,
    Tensor=Tensor,
    TritonError=TritonError,
    InferenceResponse=InferenceResponse,
)


class Sender:
    """Triton's; `may` holds up each response, and those numbered in `fails` cannot be sent."""

    def __init__(self, fails: set[int]) -> None:
        self.fails, self.calls, self.may = fails, 0, threading.Event()
        self.sent: list[tuple[list[int] | str, int]] = []

    def send(self, response: Any, flags: int = 0) -> None:
        assert self.may.wait(10)
        self.calls += 1
        if self.calls in self.fails:
            raise RuntimeError("no memory")
        shown = response.error.message if response.error else response.arrays["output_ids"].ravel().tolist()
        self.sent.append((shown, flags))


def replied(fails: set[int], parameters: str = "{}") -> tuple[EngineReply, Sender, Sending]:
    sender, sending = Sender(fails), Sending()
    request: Any = SimpleNamespace(
        get_response_sender=lambda: sender, requested_output_names=tuple, parameters=lambda: parameters
    )
    reply = EngineReply(request, PB, sending)
    job = Job((1, 2), Sampling(max_tokens=9, end_id=-1), reply, np.zeros(1), streaming=True)
    reply.answers = Answers(WantedOutputs(), job)
    return reply, sender, sending


def so_far(*ids: int) -> list[Hypothesis]:
    return [Hypothesis(ids)]


def test_steps_do_not_wait_for_responses() -> None:
    """And each response has what is new, the last one the final flag."""
    reply, sender, sending = replied(set())
    reply.update(so_far(5))
    reply.update(so_far(5, 6))
    reply.finish(so_far(5, 6, 7))
    assert not sender.sent
    sender.may.set()
    sending.close()
    assert sender.sent == [([5], 0), ([6], 0), ([7], FINAL)]


@pytest.mark.parametrize("lost", [1, 2])
def test_a_response_that_cannot_be_sent_fails_its_request(lost: int) -> None:
    """Rather than leaving a gap: at the next token, or at the end."""
    reply, sender, sending = replied({lost})
    sender.may.set()
    reply.update(so_far(5))
    reply.finish(so_far(5, 6))
    sending.close()
    assert len(sender.sent) == lost
    assert "no memory" in str(sender.sent[-1][0]) and sender.sent[-1][1] == FINAL
    with pytest.raises(RuntimeError, match="no memory"):
        reply.update(so_far(5, 6))


def test_a_client_that_is_gone_holds_up_no_other() -> None:
    """The error of a response that cannot be sent cannot be sent either."""
    reply, sender, sending = replied({1, 2})
    sender.may.set()
    reply.finish(so_far(5))
    sending.put(lambda: sender.sent.append(("next", 0)))
    sending.close()
    assert sender.sent == [("next", 0)]
