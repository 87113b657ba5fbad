"""Choosing tokens, on vocabularies small enough to reckon by hand."""

from __future__ import annotations

from collections import Counter
from functools import partial

import numpy as np
import pytest

from serving.engine.sampling import Sampling, Scores, TimestampRules, processed
from serving.engine.strategies import Beams, Single, highest

END = 4
LOGITS = np.log(np.array([0.4, 0.3, 0.2, 0.06, 0.04], np.float32))


def scores(logits: np.ndarray) -> list[Scores]:
    return [Scores(partial(np.asarray, row)) for row in np.atleast_2d(logits)]


def options(**changes: object) -> Sampling:
    return Sampling(**{"max_tokens": 5, "end_id": END, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("logits", "prompt", "found"),
    [
        ([2.0, -2.0, 1.0, 0.0, 0.0], [0, 1], [1.0, -4.0, 1.0, 0.0, 0.0]),
        ([1.0, 2.0, -1.0], [1, 3, 400], [1.0, 1.0, -1.0]),  # rows of a prompt table are no words
    ],
)
def test_repetition_penalty_counts_the_prompt(
    logits: list[float], prompt: list[int], found: list[float]
) -> None:
    """Positive logits are divided, negative ones multiplied (Keskar et al. 2019)."""
    chosen = options(repetition_penalty=2.0)
    assert processed(np.array(logits, np.float32), prompt, [], chosen).tolist() == found


def test_presence_and_frequency_count_what_was_generated() -> None:
    """Presence once per token, frequency once per occurrence."""
    out = processed(
        np.zeros(5, np.float32), [9, 1, 1], [1, 1], options(presence_penalty=0.5, frequency_penalty=0.25)
    )
    assert out.tolist() == [0.0, -1.0, 0.0, 0.0, 0.0]


def test_bad_words_ban_only_their_last_token() -> None:
    """A word of two tokens is banned only after its first; one of a single token always."""
    assert processed(LOGITS, [], [1], options(bad_words=((0, 2),)))[2] == LOGITS[2]
    assert processed(LOGITS, [], [0], options(bad_words=((0, 2),)))[2] < -1e8
    assert processed(LOGITS, [], [], options(bad_words=((3,),)))[3] < -1e8


def test_stop_word_and_min_tokens() -> None:
    """A stop word ends the text; the end id is banned before min_tokens."""
    single = Single([], options(stop_words=((0, 0),), max_tokens=50))
    assert single.advance(scores(LOGITS)) == [(0, 0)]
    assert single.advance(scores(LOGITS)) == []
    assert processed(LOGITS, [], [1], options(min_tokens=2))[END] < -1e8
    assert processed(LOGITS, [], [1, 1], options(min_tokens=2))[END] == LOGITS[END]
    none = processed(LOGITS, [], [], options(end_id=-1, min_tokens=2))
    assert none.tolist() == LOGITS.tolist(), "an end id of -1 is no token, least of all the last"


@pytest.mark.parametrize(
    ("changes", "allowed"),
    [
        ({"top_k": 2}, {0, 1}),
        ({"top_p": 0.65}, {0, 1}),
        ({"top_k": 3, "top_p": 0.5}, {0, 1}),
        ({"top_k": 1}, {0}),
    ],
)
def test_random_choice_stays_in_its_set(changes: dict[str, float], allowed: set[int]) -> None:
    """top_k first, then the smallest set that holds top_p of what is left."""
    drawn = set()
    for seed in range(200):
        single = Single([], options(seed=seed, **changes))
        single.advance(scores(LOGITS))
        drawn.add(single.best.ids[0])
    assert drawn == allowed


def test_random_choice_follows_the_distribution_and_the_seed() -> None:
    """Frequencies are the probabilities, within four standard deviations; equal seeds give equal tokens."""
    counts: Counter[int] = Counter()
    for seed in range(2000):
        single = Single([], options(seed=seed, top_k=5))
        single.advance(scores(LOGITS))
        counts[single.best.ids[0] if single.best.ids else END] += 1
    for token, probability in enumerate(np.exp(LOGITS)):
        assert counts[token] == pytest.approx(
            2000 * probability, abs=4 * np.sqrt(2000 * probability * (1 - probability))
        )


def test_log_probs_are_those_of_the_chosen_tokens() -> None:
    """The sum is the cumulative log probability, the end id included."""
    single = Single([], options())
    single.advance(scores(LOGITS))
    end = np.full(5, -10.0, np.float32)
    end[END] = 10
    single.advance(scores(end))
    assert single.best.ids == (0,)
    assert single.best.log_probs[0] == pytest.approx(np.log(0.4), abs=1e-5)
    assert single.best.cum_log_prob == pytest.approx(np.log(0.4), abs=1e-3)


def test_beams_beat_greed() -> None:
    """A path that starts second best but ends better is found."""
    first = np.log(np.array([0.5, 0.45, 0.03, 0.01, 0.01], np.float32))
    after_zero = np.log(np.array([0.3, 0.3, 0.2, 0.1, 0.1], np.float32))
    after_one = np.log(np.array([0.01, 0.01, 0.95, 0.01, 0.02], np.float32))
    beams = Beams([], options(beam_width=2, max_tokens=2))
    rows = beams.advance(scores(first))
    assert rows == [(0, 0), (0, 1)]
    assert beams.advance(scores(np.stack([after_zero, after_one]))) == []
    assert beams.results()[0].ids == (1, 2)


def test_what_must_be_a_time_is_not_unlikely() -> None:
    """What Whisper's rules leave has the probability of all, in beams as in one sequence: here half of it is
    text, which the rules forbid at the beginning.
    """
    logits = np.log(np.array([0.3, 0.1, 0.05, 0.03, 0.02, 0.4, 0.1], np.float32))
    timed = options(beam_width=2, timestamps=TimestampRules(5, END))
    beams, single = Beams([], timed), Single([], options(timestamps=TimestampRules(5, END)))
    beams.advance(scores(logits))
    single.advance(scores(logits))
    assert beams.running[0].ids == single.best.ids == (5,)
    assert beams.running[0].cum_log_prob == pytest.approx(np.log(0.8), abs=1e-5)
    assert single.best.cum_log_prob == pytest.approx(np.log(0.8), abs=1e-5)


@pytest.mark.parametrize("size", [10, 63, 640, 5 * 51_865])
def test_the_highest_are_found_in_order(size: int) -> None:
    """Wherever they lie, in the part that fills no block as well; equals in their order."""
    values = np.random.default_rng(size).permutation(size).astype(np.float32)
    values[-1] = size
    assert highest(values, 10).tolist() == np.argsort(-values, kind="stable")[:10].tolist()
    values[:] = 0
    assert highest(values, 10).tolist() == list(range(10))
