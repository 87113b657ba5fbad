"""Models that watch their callers: nobody asks about a caller whose last response is on its way, which would
end the tritonserver; and an unloaded model holds no call, which would end its stub.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from conch.bundle import EngineFacts
from serving.audio.endpoint import SpeechEndpoint
from serving.errors import EngineError
from serving.text.endpoint import TextEndpoint
from serving.text.model import TextModel
from serving.text.tokens import TextTokenizer
from serving.triton.unary import UnaryFace
from serving.triton.watch import Watch
from tests.fakes.triton_python import UTILS, Tensor, request

from ..conftest import ROOT

FINAL = UTILS.TRITONSERVER_RESPONSE_COMPLETE_FINAL
WORDS, TWO = np.array([[b"On"]], object), np.array([[2]], np.int32)
RESULT = {"output_ids": np.ones((1, 1, 2), np.int32), "sequence_length": np.array([[2]], np.int32)}


def answered(*, decoupled: bool = False) -> Any:
    """A call to another model takes a while and answers RESULT."""
    time.sleep(0.02)
    tensors = [Tensor(name, array) for name, array in RESULT.items()]
    response = SimpleNamespace(has_error=lambda: False, output_tensors=lambda: tensors)
    return iter([response]) if decoupled else response


CALLS: Any = SimpleNamespace(**vars(UTILS), InferenceRequest=lambda **_: SimpleNamespace(exec=answered))


class Sender:
    """Notes what it is asked before and after the final response was handed to it, which takes a
    while to go.
    """

    def __init__(self) -> None:
        self.final = False
        self.asked: dict[bool, int] = {False: 0, True: 0}

    def is_cancelled(self) -> bool:
        self.asked[self.final] += 1
        return False

    def send(self, _: Any = None, flags: int = 0) -> None:
        self.final = self.final or flags == FINAL
        time.sleep(0.05)


def slowly(*_: Any, **__: Any) -> Iterator[dict[str, Any]]:
    time.sleep(0.02)
    yield dict(RESULT)


def unary() -> UnaryFace:
    return UnaryFace(EngineFacts("t5", 8, 9, 1), 1, CALLS)


def text() -> TextEndpoint:
    """With GPT-2's words, whatever the engine is."""
    tokenizer = TextTokenizer.load(ROOT / "miniatures/gpt2")
    model = TextModel(EngineFacts("gpt2", 64, 2000, 1999, pad_id=1999), tokenizer)
    return TextEndpoint(model, {"output": []}, CALLS)


def speech(transcribe: Any = slowly) -> SpeechEndpoint:
    whisper: Any = SimpleNamespace(transcribe=transcribe, facts=EngineFacts("whisper", 8, 9, 1))
    return SpeechEndpoint(whisper, {"output": [{"name": name} for name in RESULT]}, CALLS)


def test_rows_of_a_request_are_answered_at_once() -> None:
    """Three recordings in one request: each waits for the others, under an id of its own."""
    together, names = threading.Barrier(3, timeout=10), list[str]()

    def transcribe(row: Any, wanted: Any, engine: Any, *, streaming: bool) -> Iterator[dict[str, Any]]:
        together.wait()
        list(engine({"input_ids": np.ones((1, 1), np.int32)}, False))
        yield {"TRANSCRIPTS": row["TEXT_PREFIX"], "sequence_length": np.array([[1]], np.int32)}

    def engine(name: str, *_: Any, **__: Any) -> Iterator[dict[str, Any]]:
        names.append(name)
        return iter(())

    face = speech(transcribe)
    face.calls.engine = engine
    answers: list[Any] = []
    face.calls.answer = lambda sender, arrays, wanted: answers.append(arrays["TRANSCRIPTS"].ravel().tolist())
    face.answer(request(TEXT_PREFIX=np.array([[b"a"], [b"b"], [b"c"]], object)), Sender())
    assert answers == [[b"a", b"b", b"c"]]
    assert sorted(names) == ["a", "a-row1", "a-row2"]


@pytest.mark.parametrize("make", [unary, text, speech])
def test_a_caller_is_watched_until_its_answer_is_sent(make: Callable[[], Any]) -> None:
    """A look each 1 ms: some before the answer, none from its final response on."""
    face = make()
    face.watch = Watch(period=0.001)
    sender, ids = Sender(), {"input_ids": np.ones((1, 3), np.int32), "request_output_len": TWO}
    face.answer(request(list(RESULT), text_input=WORDS, max_tokens=TWO, **ids), sender)
    assert sender.final
    assert sender.asked[False] > 0
    assert sender.asked[True] == 0
    assert len(face.calls.held.calls) == (make is unary)  # only it calls a decoupled model
    face.close()
    assert not face.calls.held.calls


def test_nobody_asks_the_engine_for_a_client_who_left() -> None:
    """He left while his pictures were decoded and encoded, when nothing watched."""
    face, asked, answers = text(), list[str](), list[Any]()

    def engine(name: str, *_: Any, **__: Any) -> Iterator[dict[str, Any]]:
        asked.append(name)
        yield dict(RESULT)

    face.calls.engine = engine
    face.calls.answer = lambda sender, arrays, wanted: answers.append(arrays)
    asking = request(["text_output"], text_input=WORDS, max_tokens=TWO)
    gone = SimpleNamespace(is_cancelled=lambda: True)
    with pytest.raises(EngineError, match="the client left") as error:
        face.answer(asking, gone)
    assert (error.value.kind, asked, answers) == ("UNAVAILABLE", [], [])
    face.answer(asking, Sender())
    assert (asked, len(answers)) == (["a"], 1)
