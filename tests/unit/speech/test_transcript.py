"""Transcripts of parts put together, and what of them the next window is told."""

from __future__ import annotations

from dataclasses import replace

import pytest

from speech.transcriber import context
from speech.transcript import Segment, Transcript, Word, completed, first_segments, ordered

from .test_transcriber import ONCE, segment


def test_what_is_found_later_overlaps_nothing() -> None:
    """Nor does it begin before the window before has ended. Words of a translation keep their times."""
    segments = tuple(Segment(begin, end, "a", (), 0.0, 0.0) for begin, end in ((0, 2), (2.5, 5), (4.7, 6)))
    words = tuple(Word("a", begin, end) for begin, end in ((0, 2), (4.7, 6), (2.5, 5)))
    part = Transcript(segments=segments, words=words)
    found = ordered(part, 0.5, spoken=True)
    assert [(one.start, one.end) for one in found.segments] == [(0.5, 2), (2.5, 4.7), (4.7, 6)]
    found = ordered(part, 0.5, spoken=False)
    assert [(one.start, one.end) for one in found.words] == [(0.5, 2), (4.7, 6), (2.5, 5)]


@pytest.mark.parametrize(
    ("ends", "begins", "first"),
    [(2.02, 2.1, ("ran", 2.02, 2.02)), (2.0, 2.0, ("ran", 1.5, 2.0))],
    ids=["alignment put it after the sound", "the next word begins where the segment ends"],
)
def test_a_word_at_its_segments_end_stays_with_it(
    ends: float, begins: float, first: tuple[str, float, float]
) -> None:
    segments = tuple(Segment(*span, "a", (), 0.0, 0.0) for span in ((1, ends), (begins, 3)))
    words = (Word(*first), Word("A", begins, begins), Word("dog", begins, 3.0))
    assert first_segments(Transcript(segments=segments, words=words), 1).words == words[:1]


def test_words_found_later_stand_where_they_were_said() -> None:
    """A hole between two segments is filled; a segment that reached over it ends where it begins."""
    both = [
        Transcript("a c", "en", 9, (segment(0, 6, "a"), segment(6, 8, "c"))),
        Transcript("b", "en", 3, (segment(3, 5, "b"),)),
    ]
    found = completed(*both)
    assert (found.text, found.duration) == ("a b c", 9)
    assert [(one.text, one.end) for one in found.segments] == [("a", 3), ("b", 5), ("c", 8)]


def test_context_is_what_was_said_before() -> None:
    """Also for speech that is asked for alone, and after words that were found later."""
    first, third = (replace(segment(at, at + 2, text), timed=text) for at, text in ((0, "a"), (6, "c")))
    both = Transcript("a c", "en", 9, (first, third))
    found = completed(both, Transcript("b", "en", 3, (replace(segment(3, 5, "b"), timed="b"),)))
    assert context(ONCE, both, 3.0) == "Oncea"
    assert context(ONCE, found) == "Onceabc"


def test_context_is_the_end_of_what_was_said_before() -> None:
    """Whole segments, and the last one however long it is."""

    def known(*lengths: int) -> str:
        texts = [
            f"<|{i}.00|> {letter * length}<|{i + 1}.00|>"
            for i, (letter, length) in enumerate(zip("abc", lengths, strict=False))
        ]
        part = Transcript("", "en", 9, tuple(replace(segment(0, 1, ""), timed=text) for text in texts))
        return "".join(letter for letter in context(ONCE, part) if letter.isalpha())

    assert known(100, 100) == "Once" + 100 * "a" + 100 * "b"
    assert known(100, 100, 100) == 100 * "b" + 100 * "c"
    assert known(100, 100, 400) == 400 * "c"
