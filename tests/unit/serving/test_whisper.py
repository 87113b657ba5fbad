"""The speech façade on the miniature's engine: where the times of words come from."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from conch.bundle import ENGINE, PARAMETERS
from miniatures.training.speech.clips import Clipper
from serving.architectures.shape import MOST_HEADS, Shape
from serving.audio.whisper import Whisper, begun, ended
from serving.engine.answers import Answers
from serving.engine.collected import Collected
from serving.engine.inputs import parse
from serving.engine.scheduler import Scheduler

pytestmark = pytest.mark.long

Arrays = dict[str, np.ndarray]
PREFIX = b"<|startoftranscript|><|en|><|transcribe|><|notimestamps|>"
TIMED = PREFIX.removesuffix(b"<|notimestamps|>")


class Facade:
    """The façade before an engine in this process; `asked`: what the engine was, request by request."""

    def __init__(self, bundle: Path, scheduler: Scheduler) -> None:
        self.whisper, self.scheduler, self.asked = Whisper(bundle), scheduler, list[set[str]]()

    def attends(self, wanted: bool) -> None:
        """Whether the engine tells with each step where it looked."""
        self.whisper.facts = replace(self.whisper.facts, attends=wanted)

    def engine(self, arrays: Arrays, streaming: bool) -> Iterator[Arrays]:
        self.asked.append(set(arrays))
        listener = Collected()
        job = parse(arrays, listener, self.scheduler.runtime.facts)
        self.scheduler.submit(job)
        yield Answers(job).finish(listener.wait(60))

    def words(self, wave: np.ndarray, prefix: bytes = PREFIX, **inputs: np.ndarray) -> Arrays:
        arrays = {
            "WAV": wave[None],
            "TEXT_PREFIX": np.array([[prefix]], object),
            "WORD_TIMESTAMPS": np.array([[True]]),
            **inputs,
        }
        (answer,) = self.whisper.transcribe(arrays, set(), self.engine, streaming=False)
        return answer


@pytest.fixture
def facade(engine: Path, scheduler: Scheduler, tmp_path: Path) -> Facade:
    (tmp_path / ENGINE).symlink_to(engine)
    (tmp_path / PARAMETERS).write_text(json.dumps({"zero_pad": False}))
    return Facade(tmp_path, scheduler)


@pytest.mark.parametrize(("prefix", "beams"), [(PREFIX, 1), (TIMED, 1), (TIMED, 3)])
def test_times_of_words_come_with_the_text(
    facade: Facade, clipper: Clipper, prefix: bytes, beams: int
) -> None:
    """One request, and what a second look at the sound with the whole text says."""
    away, width = [], np.array([[beams]], np.int32)
    for _ in range(8):
        wave = clipper.wave(clipper.speech(int(clipper.rng.uniform(3, 14) * 16000)))
        facade.asked.clear()
        facade.attends(True)
        at_once = facade.words(wave, prefix, BEAM_WIDTH=width)
        assert [asked & {"return_step_attention", "return_cross_attention"} for asked in facade.asked] == [
            {"return_step_attention"}
        ]
        facade.attends(False)
        again = facade.words(wave, prefix, BEAM_WIDTH=width)
        assert len(facade.asked) == 3
        assert at_once["WORD_TEXTS"].tolist() == again["WORD_TEXTS"].tolist()
        away.append(np.abs(at_once["WORD_TIMES"] - again["WORD_TIMES"]).ravel())
    assert np.median(np.concatenate(away)) <= 0.04


def test_a_second_look_where_steps_do_not_tell(facade: Facade, clipper: Clipper) -> None:
    """Beams that a limit cuts off have none after their last word."""
    limits = {"BEAM_WIDTH": np.array([[2]], np.int32), "MAX_TOKENS": np.array([[5]], np.int32)}
    answer = facade.words(clipper.wave(clipper.speech(6 * 16000)), **limits)
    assert [("return_cross_attention" in asked) for asked in facade.asked] == [False, True]
    assert answer["WORD_TIMES"].shape[1] == answer["WORD_TEXTS"].shape[1] > 0
    assert (np.diff(answer["WORD_TIMES"][0], axis=1) >= 0).all()


@pytest.mark.parametrize("prefix", [PREFIX, TIMED])
def test_a_text_that_was_cut_off(facade: Facade, clipper: Clipper, prefix: bytes) -> None:
    """The step after its last word tells where that ends, and leaves no other trace."""
    wave = clipper.wave(clipper.speech(12 * 16000))
    whole = facade.words(wave, prefix)
    length = whole["TOKENS"].shape[1]
    for limit in (1, 2, 9, 14, length):  # the last ends where the text does
        most = np.array([[limit]], np.int32)
        facade.asked.clear()
        found = facade.words(wave, prefix, MAX_TOKENS=most)
        assert len(facade.asked) == 1
        facade.attends(False)
        other = facade.words(wave, prefix, MAX_TOKENS=most)
        facade.attends(True)
        assert found["TRUNCATED"].item()
        assert found["TOKENS"].shape[1] == limit
        for name in ("TOKENS", "TRANSCRIPTS", "SEGMENT_TEXTS", "SEGMENT_SIZES", "WORD_TEXTS", "TOKEN_BYTES"):
            assert found[name].tolist() == other[name].tolist(), name
        for name in ("AVG_LOGPROB", "TOKEN_LOGPROBS"):
            np.testing.assert_allclose(found[name], other[name], rtol=1e-3, atol=1e-3)
        said = found["WORD_TIMES"][0]
        np.testing.assert_allclose(said, whole["WORD_TIMES"][0][: len(said)], atol=0.1)


def test_words_are_where_the_decoder_looked(facade: Facade) -> None:
    """Not where the model's timestamps say; a first word does not begin with what was left out before it."""
    vocabulary = facade.whisper.vocabulary
    words = [
        vocabulary.tokenizer.encode(text, add_special_tokens=False).ids[0] for text in (" a", " b", " c")
    ]
    first = vocabulary.first_timestamp
    tokens = [first, words[0], words[1], first + 50, first + 50, words[2], first + 100]
    looked = np.full((2, len(tokens), 500), 1e-3)
    for step, frame in enumerate((0, 150, 175, 200, 200, 205, 230)):
        looked[:, step, frame : frame + 20] = 1.0

    def engine(arrays: Arrays, streaming: bool) -> Iterator[Arrays]:
        yield {
            "output_ids": np.array([[tokens]], np.int32),
            "sequence_length": np.array([[len(tokens)]], np.int32),
            "output_log_probs": np.full((1, 1, len(tokens)), -0.1, np.float32),
            "cum_log_probs": np.array([[-0.7]], np.float32),
            "cross_attention": (looked / looked.sum(-1, keepdims=True)).astype(np.float16)[None],
        }

    asked = {
        "WAV": np.zeros((1, 160_000), np.float32),
        "TEXT_PREFIX": np.array([[TIMED]], object),
        "WORD_TIMESTAMPS": np.array([[True]]),
    }
    (answer,) = facade.whisper.transcribe(asked, set(), engine, streaming=False)
    assert answer["SEGMENT_TIMES"].ravel().tolist() == [0.0, 1.0, 1.0, 2.0]
    times = answer["WORD_TIMES"][0]
    assert times[:, 0].tolist() == pytest.approx([times[0, 1] - 0.6, 3.5, 4.1], abs=0.2)
    assert times[:, 1].tolist() == pytest.approx([3.5, 4.1, 4.6], abs=0.2)


@pytest.mark.parametrize(
    ("word", "segment", "begins", "ends"),
    [
        ((0.0, 1.9), (0.5, 0.6), 0.0, 1.9),  # no longer than a word may be
        ((0.0, 2.4), (0.7, 1.5), 0.7, 1.5),  # the segment's own times lie in it
        ((0.0, 2.4), (0.1, 3.0), 1.8, 2.4),  # or tell nothing
        ((0.0, 2.4), (2.0, 0.2), 1.8, 0.6),
    ],
)
def test_a_long_word_at_a_segments_edge_is_not_all_said(
    word: tuple[float, float], segment: tuple[float, float], begins: float, ends: float
) -> None:
    """Alignment gave it what was left out, or the silence."""
    assert begun(word, segment[0]) == (pytest.approx(begins), word[1])
    assert ended(word, segment[1]) == (word[0], pytest.approx(ends))


def test_steps_tell_of_few_heads_only() -> None:
    """A checkpoint that names no heads has half of all, which would be hundreds."""
    named, half = ((0, 1), (2, 3)), tuple((layer, head) for layer in range(12, 24) for head in range(16))
    assert len(half) > MOST_HEADS
    for heads, told in ((named, named), (half, ()), ((), ())):
        shape = Shape("whisper", 64, 16, 100, 2, 4, 128, alignment_heads=heads)
        assert shape.step_heads == told
