"""What the evaluation compares: words, and their times."""

from __future__ import annotations

import pytest

from speech.transcript import Word

pytestmark = pytest.mark.slow  # torch


def test_times_are_compared_of_words_that_both_hear() -> None:
    """In order; a word that one of them transcribed differently, or not at all, is left out."""
    from bench.quality.reference import apart

    ours = [Word("And", 0.1, 0.3), Word("so", 0.4, 0.6), Word("um", 0.7, 0.8), Word("ask", 1.0, 1.4)]
    theirs = [Word(" And", 0.0, 0.3), Word(" so,", 0.4, 0.7), Word(" Ask", 1.1, 1.4), Word(" not", 2.0, 2.2)]
    assert list(apart(ours, theirs)) == pytest.approx([0.1, 0.0, 0.0, 0.1, 0.1, 0.0])
