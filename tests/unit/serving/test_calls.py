"""What Triton's models say to each other, without Triton: an inference request is what `exec` of the stand-in
gives.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from serving.errors import ABORTED, EngineError
from serving.triton.calls import BlsClient, Held, drained, engine_id
from serving.triton.watch import Watch
from tests.fakes.triton_python import Tensor


class Response(SimpleNamespace):
    def __init__(self, count: int = 0, error: str = "") -> None:
        tensors = [Tensor("sequence_length", np.array([[count]]))] if count else []
        super().__init__(
            has_error=lambda: bool(error),
            error=lambda: SimpleNamespace(message=lambda: error),
            output_tensors=lambda: tensors,
        )


class Triton:
    """Triton's side: what the engine answers, what it was asked, what was sent."""

    TRITONSERVER_RESPONSE_COMPLETE_FINAL = 1

    def __init__(self, answers: list[Response], gone_after: int = 99) -> None:
        self.left, self.gone_after, self.Tensor = iter(answers), gone_after, Tensor
        self.asked, self.sent = list[Any](), list[Any]()

    def InferenceRequest(self, **given: Any) -> Any:  # noqa: N802
        self.asked.append((given["model_name"], given["request_id"], given["requested_output_names"]))
        return SimpleNamespace(exec=lambda decoupled=False: self.left if decoupled else Response())

    def InferenceResponse(self, tensors: list[Tensor]) -> Any:  # noqa: N802
        return tensors[0].as_numpy().item()

    def send(self, response: Any = None, flags: int = 0) -> None:
        self.sent.append(response)

    def is_cancelled(self) -> bool:
        return len(self.sent) >= self.gone_after


def test_the_rest_is_taken_whoever_fails() -> None:
    """A listener that leaves, and one that fails, leave nothing in the line."""
    for fail in (False, True):
        line = iter(range(5))
        listened = drained(line)
        assert next(listened) == 0
        with pytest.raises(ZeroDivisionError) if fail else pytest.raises(GeneratorExit):
            listened.throw(ZeroDivisionError if fail else GeneratorExit)
        assert list(line) == []


@pytest.mark.parametrize("last", [Response(error="UNAVAILABLE: full"), Response(ABORTED)])
def test_an_error_is_raised_when_all_was_heard(last: Response) -> None:
    triton = Triton([Response(1), last, Response()])
    with pytest.raises(EngineError):
        list(BlsClient(triton).engine("id", ["sequence_length"], {}, streaming=True))
    assert list(triton.left) == []


@pytest.mark.parametrize("own", ["mine", None])
def test_a_client_that_goes_stops_its_own_request_once(
    monkeypatch: pytest.MonkeyPatch, own: str | None
) -> None:
    """What still comes is taken, but not sent; a request with a client's own id is not stopped. The outputs
    that TensorRT-LLM insists on are named.
    """
    monkeypatch.setattr("serving.triton.calls.PERIOD", 0.0)
    triton = Triton([], gone_after=2)
    results: Iterator[dict[str, Any]] = ({"n": np.array(i)} for i in range(6))
    BlsClient(triton).stream(triton, results, {"n"}, own)
    assert triton.sent == [0, 1, None]
    assert triton.asked == ([("tensorrt_llm", "mine", ["output_ids", "sequence_length"])] if own else [])
    assert list(results) == []


def test_a_stream_does_not_ask_for_its_client_with_each_token() -> None:
    triton, times = Triton([]), list[int]()
    sender = SimpleNamespace(send=triton.send, is_cancelled=lambda: bool(times.append(1)))
    BlsClient(triton).stream(sender, ({"n": np.array(i)} for i in range(6)), {"n"}, "mine")
    assert (len(times), triton.sent) == (1, [*range(6), None])


def test_ids() -> None:
    """A request without an id gets one of its own, by which it can be stopped; nothing else is renamed."""
    request = SimpleNamespace(request_id=lambda: "")
    own, stoppable = engine_id(request)
    assert own == stoppable != engine_id(request)[0]
    assert engine_id(SimpleNamespace(request_id=lambda: "theirs")) == ("theirs", None)


def test_calls_are_kept_for_a_while() -> None:
    """Somebody else holds them while the stub forgets them."""
    held = Held(seconds=0.05)
    assert [held.keep(n) for n in range(3)] == [0, 1, 2]
    assert len(held.calls) == 3
    time.sleep(0.06)
    held.keep(3)
    assert [call for _, call in held.calls] == [3]


def test_a_client_that_goes_is_noticed_while_others_wait() -> None:
    """Its engine request is stopped once; nobody else's is."""
    gone, stopped = threading.Event(), list[str]()
    watch = Watch(period=0.01)
    with (
        watch.over(SimpleNamespace(is_cancelled=gone.is_set), lambda: stopped.append("a")),
        watch.over(SimpleNamespace(is_cancelled=lambda: False), lambda: stopped.append("b")),
    ):
        time.sleep(0.05)
        assert stopped == []
        gone.set()
        time.sleep(0.1)
    assert stopped == ["a"]
    assert watch.open == {}


def test_a_watch_sleeps_until_there_is_a_request() -> None:
    """An idle model costs nothing; the request that comes then is looked after."""
    others = set(threading.enumerate())
    watch, stopped, looks = Watch(period=0.01), threading.Event(), list[int]()
    (thread,) = (one for one in set(threading.enumerate()) - others if one.name == "watch")
    status = Path(f"/proc/self/task/{thread.native_id}/status")

    def switches() -> int:
        return int(status.read_text().split("\nvoluntary_ctxt_switches:")[1].split()[0])

    def cancelled() -> bool:
        looks.append(1)
        return len(looks) > 3

    for _ in range(2):
        time.sleep(0.05)
        before = switches()
        time.sleep(0.2)
        assert switches() - before <= 1
        looks.clear()
        stopped.clear()
        with watch.over(SimpleNamespace(is_cancelled=cancelled), stopped.set):
            assert stopped.wait(5)
    assert len(looks) == 4
