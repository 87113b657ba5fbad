"""Texts that end before a stop word, whole and as streams."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.engine.stop_words import StopFilter, StreamedToken, ending, trimmed, words_in

WORDS = ((7,), (3, 7), (4, 5))


def test_word_lists_of_the_engine_are_read() -> None:
    """Ids back to back, the end of each word, -1 where there is none; an empty list has none."""
    assert words_in(np.array([[7, 3, 7, 0], [1, 3, -1, -1]], np.int32)) == ((7,), (3, 7))
    assert words_in(np.zeros((2, 0), np.int32)) == ()


@pytest.mark.parametrize(
    ("ids", "count"), [((1, 7), 1), ((3, 7), 2), ((1, 3), 0), ((4, 5), 2), ((5,), 0), ((7, 1), 0), ((), 0)]
)
def test_the_longest_word_at_the_end_counts(ids: tuple[int, ...], count: int) -> None:
    """A word in the middle is none that stopped the text."""
    assert ending(ids, WORDS) == count


def test_each_row_has_its_own_words_and_each_beam_its_own_length() -> None:
    """What is after a length is no part of the text."""
    tokens = np.array([[[1, 3, 7, 0], [7, 1, 2, 7]], [[1, 3, 7, 0], [9, 9, 0, 0]]], np.int32)
    lengths = np.array([[3, 3], [3, 2]], np.int32)
    assert trimmed(tokens, lengths, [WORDS, ((9, 9),)]).tolist() == [[1, 3], [3, 0]]


@given(ids=st.lists(st.integers(1, 8), max_size=12), cuts=st.lists(st.integers(1, 3), min_size=1, max_size=5))
def test_a_stream_shows_what_the_whole_text_would(ids: list[int], cuts: list[int]) -> None:
    """In groups of any size. The engine stops at the first word, so nothing comes after it."""
    stop = next((i for i in range(1, len(ids) + 1) if ending(ids[:i], WORDS)), len(ids))
    ids = ids[:stop]
    held, shown, at, n = StopFilter(WORDS), list[int](), 0, 0
    while at < len(ids):
        size = cuts[n % len(cuts)]
        shown += [one.token for one in held.add([StreamedToken(i) for i in ids[at : at + size]])]
        at, n = at + size, n + 1
    shown += [one.token for one in held.rest()]
    assert shown == ids[: len(ids) - ending(ids, WORDS)]
