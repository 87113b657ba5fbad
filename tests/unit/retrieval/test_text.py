"""Texts to passages and chunks, filters, extraction, reciprocal ranks: what needs no database."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from gateway.retrieval.filters import ComparisonFilter, Compound, depth
from retrieval.calibration import scale_of
from retrieval.chunking import ChunkingStrategy, chunks, guess, halves, homes, passages
from retrieval.indexing import embedded
from retrieval.library import Item
from retrieval.search import interleaved, together

FILTERS: TypeAdapter[Any] = TypeAdapter(ComparisonFilter | Compound)
LETTERS = st.sampled_from("ab .\n日ж!?")


@given(st.text(LETTERS, max_size=2000), st.integers(20, 256))
def test_passages_have_all_of_a_text_in_order(text: str, tokens: int) -> None:
    """Nothing but space is left out, nothing is twice, and none is longer than was guessed."""
    spans = passages(text, tokens)
    assert "".join(span.of(text) for span in spans).split() == text.split() or not spans
    assert "".join("".join(span.of(text).split()) for span in spans) == "".join(text.split())
    assert all(first.end <= second.start for first, second in pairwise(spans))
    assert all(guess(span.of(text)) <= max(tokens, 40) for span in spans)


@given(
    st.lists(st.integers(1, 256), max_size=60),
    st.integers(256, 4096).flatmap(lambda most: st.tuples(st.just(most), st.integers(0, most // 2))),
)
def test_chunks_keep_the_limits(counts: list[int], limits: tuple[int, int]) -> None:
    """Every passage is in a chunk, chunks are at most as long as asked, overlaps too, and every one goes
    on.
    """
    strategy = ChunkingStrategy(*limits)
    made = chunks(counts, strategy)
    assert {passage for first, last in made for passage in range(first, last)} == set(range(len(counts)))
    assert all(sum(counts[first:last]) <= strategy.max_tokens for first, last in made)
    for (_, end), (begin, following) in pairwise(made):
        assert begin <= end < following
        assert sum(counts[begin:end]) <= strategy.overlap
    assert all(
        first <= passage < last
        for passage, home in enumerate(homes(made, len(counts)))
        for first, last in [made[home]]
    )


def test_openais_default_is_met_exactly() -> None:
    """800 tokens with 400 of overlap, by passages of 200; a passage is answered with the chunk around it."""
    assert ChunkingStrategy().passage(256) == 200
    assert chunks([200] * 8, ChunkingStrategy()) == [(0, 4), (2, 6), (4, 8)]
    assert homes([(0, 4), (2, 6), (4, 8)], 8) == [0, 0, 0, 1, 1, 2, 2, 2]


def test_halves_cut_between_words() -> None:
    text = "one two three four"
    (whole,) = passages(text, 100)
    assert [part.of(text) for part in halves(whole, text)] == ["one two three ", "four"]


@pytest.mark.parametrize(
    ("chosen", "accepted"),
    [
        ({"type": "eq", "key": "n", "value": 1}, True),
        ({"type": "eq", "key": "yes", "value": 1}, False),
        ({"type": "eq", "key": "n", "value": "1"}, False),
        ({"type": "ne", "key": "none", "value": 1}, True),
        ({"type": "gt", "key": "none", "value": 1}, False),
        ({"type": "gt", "key": "s", "value": 1}, False),
        ({"type": "lte", "key": "s", "value": "b"}, True),
        ({"type": "in", "key": "n", "value": [3, 1.0]}, True),
        ({"type": "nin", "key": "n", "value": [1]}, False),
        ({"type": "gte", "key": "yes", "value": 0}, False),
    ],
)
def test_comparisons(chosen: dict[str, Any], accepted: bool) -> None:
    assert FILTERS.validate_python(chosen).accepts({"n": 1, "s": "b", "yes": True}) is accepted


def test_filters_have_bounds() -> None:
    """Depth and width are looked at before anything descends."""
    nested: dict[str, Any] = {"type": "eq", "key": "a", "value": 1}
    for _ in range(2000):
        nested = {"type": "and", "filters": [nested]}
    assert depth(nested) > 8
    for bad in (nested, {"type": "or", "filters": []}, {"type": "in", "key": "a", "value": 1}):
        with pytest.raises(ValidationError):
            FILTERS.validate_python(bad)


def test_scores_of_models_that_compare_the_same() -> None:
    """Their mean: what one of them has not found is no better for it."""
    assert together([{"a": 0.9, "b": 0.5}, {"b": 0.7}]) == pytest.approx({"b": 0.6, "a": 0.45})


def test_a_scale_lies_between_what_means_the_same_and_what_does_not() -> None:
    ours, theirs = np.eye(3, dtype=np.float32), 0.8 * np.eye(3, dtype=np.float32) + np.float32(0.1)
    scale = scale_of(ours, theirs)
    assert (scale.same, scale.other) == pytest.approx((0.9, 0.1))
    assert [round(scale.score(one), 2) for one in (0.1, 0.5, 0.9)] == [0.12, 0.5, 0.88]


def test_lists_of_different_things_are_interleaved() -> None:
    """The better score of each; of equal ones that of the first list first."""
    texts, pictures = {"text": 0.9, "both": 0.5, "other": 0.1}, {"picture": 0.9, "both": 0.7, "last": 0.3}
    merged = interleaved([texts, pictures])
    assert list(merged) == ["text", "picture", "both", "last", "other"]
    assert merged["both"] == 0.7


class Letters:
    """A token is a letter: far more than was guessed."""

    dimensions, positions, pictures = 2, 64, False

    async def embed(self, items: Sequence[Item], *, cut: bool) -> tuple[np.ndarray, np.ndarray]:
        return np.ones((len(items), 2), np.float32), np.array([len(item) for item in items])


@given(st.text(LETTERS, min_size=1, max_size=3000), st.integers(10, 100))
def test_passages_are_halved_until_they_are_read_whole(text: str, most: int) -> None:
    spans, counts, values = asyncio.run(embedded(text, passages(text, 64), Letters(), most))
    assert max(counts, default=0) <= most
    assert len(spans) == len(counts) == len(values)
    assert "".join("".join(span.of(text).split()) for span in spans) == "".join(text.split())
