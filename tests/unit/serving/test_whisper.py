"""The speech façade on the miniature's engine: where the times of words come from."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from conch.bundle import ENGINE, PARAMETERS
from miniatures.training.speech.clips import Clipper
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


@pytest.mark.parametrize(("prefix", "beams"), [(TIMED, 1), (PREFIX, 3), (TIMED, 3)])
def test_times_of_words_come_with_the_text(
    facade: Facade, clipper: Clipper, prefix: bytes, beams: int
) -> None:
    """In one request, and the same of whichever request."""
    away, width = [], np.array([[beams]], np.int32)
    for _ in range(8):
        wave = clipper.wave(clipper.speech(int(clipper.rng.uniform(3, 14) * 16000)))
        plain = facade.words(wave)
        facade.asked.clear()
        found = facade.words(wave, prefix, BEAM_WIDTH=width)
        assert ["return_step_attention" in asked for asked in facade.asked] == [True]
        if found["WORD_TEXTS"].tolist() == plain["WORD_TEXTS"].tolist():
            away.append(np.abs(found["WORD_TIMES"] - plain["WORD_TIMES"]).ravel())
    assert len(away) > 4
    assert np.median(np.concatenate(away)) <= 0.04


@pytest.mark.parametrize(("prefix", "beams"), [(PREFIX, 1), (TIMED, 1), (PREFIX, 2), (TIMED, 2)])
def test_a_text_that_was_cut_off(facade: Facade, clipper: Clipper, prefix: bytes, beams: int) -> None:
    """The step after its last word, which leaves no other trace, tells where that ends; beams have none."""
    wave, width = clipper.wave(clipper.speech(12 * 16000)), np.array([[beams]], np.int32)
    whole = facade.words(wave, prefix, BEAM_WIDTH=width)
    length = whole["TOKENS"].shape[1]
    for limit in (1, 2, 9, 14, length):  # the last ends where the text does
        inputs = {"MAX_TOKENS": np.array([[limit]], np.int32), "BEAM_WIDTH": width}
        facade.asked.clear()
        found = facade.words(wave, prefix, **inputs)
        other = facade.words(wave, prefix, **inputs, WORD_TIMESTAMPS=np.array([[False]]))
        assert len(facade.asked) == 2
        assert found["TRUNCATED"].item()
        assert found["TOKENS"].shape[1] == limit
        assert "WORD_TIMES" not in other
        for name in ("TOKENS", "SEGMENT_TEXTS", "SEGMENT_TIMES", "SEGMENT_SIZES", "TOKEN_BYTES"):
            assert found[name].tolist() == other[name].tolist(), name
        for name in ("AVG_LOGPROB", "TOKEN_LOGPROBS"):
            np.testing.assert_allclose(found[name], other[name], rtol=1e-3, atol=1e-3)
        said = found["WORD_TIMES"][0]
        expected = whole["WORD_TIMES"][0][: len(said)]
        np.testing.assert_allclose(said[:, 0], expected[:, 0], atol=0.1)
        np.testing.assert_allclose(said[:, 1], expected[:, 1], atol=0.1 if beams == 1 else 0.6)


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
