"""Where segments and their words begin and end: in the sound."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from speech import pauses
from speech.pauses import TimedWord
from speech.sounds import sounding
from speech.windows import Window

from .test_pauses import Span, Spans, cut, piece, timed, voiced


@pytest.mark.parametrize("between", [1.8, 2.3, 3.2])
def test_segments_begin_and_end_where_they_sound(between: float) -> None:
    """The model's time lies in the last word, in the pause or in the first word after it; words whose times
    keep to it go along.
    """
    before = piece(" The", " fox", ".", span=(0.0, between))
    later = piece(" It", " hid", ".", span=(between, 6.0))
    words = timed(
        ("The", 0.0, 1.1), ("fox", 1.1, between), ("It", between, max(3.1, between)), ("hid", 3.3, 4.0)
    )
    (first, second), placed = cut([before, later], words, voiced(((0.5, 2.0), (2.8, 4.0))))
    assert first.span == (pytest.approx(0.48), pytest.approx(2.02))
    assert second.span == (pytest.approx(2.78), pytest.approx(4.02))
    assert placed[1].span == (1.1, first.span[1])
    assert placed[2].span[0] == second.span[0]


@pytest.mark.parametrize("span", [(0.0, 3.0), (3.2, 9.0), (7.0, 9.0)])
def test_a_segment_is_where_its_words_are(span: Span) -> None:
    """The model's own times run ahead of the sound, or lag it."""
    words = timed(("It", 4.0, 4.4), ("hid", 4.5, 6.0))
    (found,), placed = cut([piece(" It", " hid", ".", span=span)], words, voiced(((0.0, 6.0), (6.5, 9.0))))
    assert found.span == (pytest.approx(4.0), pytest.approx(6.02))
    assert placed[0] == words[0]


def test_words_of_a_translation_do_not_move_their_segment() -> None:
    """They are in another order than what was spoken."""
    words = timed(("It", 4.0, 4.4), ("hid", 4.5, 6.0))
    window = voiced(((0.0, 9.0),))
    for in_order, end in ((True, 6.0), (False, 9.0)):
        whole = piece(" It", " hid", ".", span=(4.0, 9.0))
        (found,), _ = pauses.cut([whole], words, window, sounding(window), in_order=in_order)
        assert found.span[1] == pytest.approx(end, abs=0.01)


@pytest.mark.parametrize(
    ("speech", "end", "span", "begin"),
    [
        (((0.0, 0.2), (0.9, 3.0)), 0.96, (0.0, 3.0), 0.88),  # a click, or the end of what was before
        (((0.0, 0.2), (1.9, 3.0)), 1.96, (0.0, 3.0), 1.88),  # longer than a pause
        (((0.0, 0.4), (0.9, 3.0)), 0.96, (0.0, 3.0), 0.0),  # long enough for a word
        (((0.0, 0.2), (0.9, 3.0)), 0.88, (0.0, 3.0), 0.0),  # nor does it reach over the rest
        (((0.0, 0.3), (0.5, 3.0)), 0.3, (0.5, 3.0), 0.0),  # spoken before the piece begins
        (((0.0, 1.2), (1.5, 4.0)), 1.6, (1.5, 4.0), 0.0),  # too much for a click
    ],
)
def test_a_windows_first_word_begins_where_it_is_said(
    speech: Spans, end: float, span: Span, begin: float
) -> None:
    """Alignment lets it begin with the window."""
    later = max(end, 0.5)
    words = timed(("The", 0.0, end), ("fox", later, 2.0), ("ran", 2.0, span[1]))
    (found,), placed = cut([piece(" The", " fox", " ran", span=span)], words, voiced(speech))
    assert found.span == (pytest.approx(begin), pytest.approx(span[1]))
    assert placed[0].span[0] == pytest.approx(begin, abs=0.03)


def test_words_never_overlap() -> None:
    """The model's timestamp is after the first word, and the sound begins inside it."""
    words = timed(("The", 1.0, 1.28), ("fox", 1.28, 1.6), ("ran", 1.6, 1.98), (".", 1.98, 2.0))
    _, placed = cut([piece(" The", " fox", " ran", ".", span=(1.3, 1.96))], words, voiced(((1.1, 2.0),)))
    assert [word.span for word in placed] == [
        (pytest.approx(1.1, abs=0.03), 1.28),
        (1.28, 1.6),
        (1.6, 1.98),
        (1.98, pytest.approx(2.0, abs=0.03)),
    ]


def test_words_without_length_do_not_move_others() -> None:
    """Alignment gives two tokens one frame now and then."""
    words = timed(("The", 1.0, 1.3), ("fox", 1.3, 2.0), ("ran", 2.0, 2.0), ("It", 3.0, 3.5))
    pieces = [piece(" The", " fox", " ran", span=(1.0, 2.0)), piece(" It", span=(3.0, 3.5))]
    _, placed = cut(pieces, words, voiced(((1.0, 2.3), (3.0, 3.5))))
    assert all(before.span[1] <= after.span[0] for before, after in pairwise(placed))


@pytest.mark.parametrize(
    ("speech", "spans", "words", "expected"),
    [
        # noise in the pause is not the end of what was before
        (
            ((1.0, 2.0), (2.64, 4.0)),
            ((1.0, 2.0), (2.64, 4.0)),
            ((1.0, 1.4, 2.0), (2.64, 3.1, 4.0)),
            (2.02, 2.62),
        ),
        # the last word before was spoken with that voice
        (
            ((1.0, 1.9), (2.0, 4.0)),
            ((1.0, 2.0), (2.0, 4.0)),
            ((1.0, 2.0, 2.24), (2.24, 3.0, 4.0)),
            (2.24, 2.24),
        ),
        # the first word was spoken before it
        (
            ((0.5, 1.4), (1.6, 1.82), (1.92, 4.0)),
            ((0.5, 1.4), (1.92, 4.0)),
            ((0.5, 1.0, 1.4), (1.6, 1.82, 4.0)),
            (1.42, 1.58),
        ),
        # alignment is too far from it
        (
            ((1.0, 1.9), (2.0, 2.3), (2.7, 4.0)),
            ((1.0, 1.9), (2.0, 4.0)),
            ((1.0, 1.4, 1.88), (2.72, 3.0, 4.0)),
            (2.32, 2.68),
        ),
    ],
)
def test_other_times_of_a_model_do_not_count(
    speech: Spans, spans: Spans, words: tuple[tuple[float, float, float], ...], expected: Span
) -> None:
    """Two segments of two words each: where the first ends and the second begins."""
    noise = (2.1, 2.5) if speech[0] == (1.0, 2.0) else (0.0, 0.0)
    window = replace(voiced((*speech, noise)), speech=speech)
    (we, saw, seen), (the, fox, done) = words
    pieces = [piece(" We", " saw", ".", span=spans[0]), piece(" The", " fox", span=spans[1])]
    spoken = timed(("We", we, saw), ("saw", saw, seen), ("The", the, fox), ("fox", fox, done))
    (first, second), placed = cut(pieces, spoken, window)
    assert (first.span[1], second.span[0]) == pytest.approx(expected)
    assert all(word.span[0] < word.span[1] for word in placed)


def test_a_segment_does_not_grow_over_speech_that_was_left_out() -> None:
    """Two seconds of it: what is found there later comes before the segment."""
    late = piece(" It", " hid", ".", span=(4.0, 6.0))
    words = timed(("It", 4.0, 4.4), ("hid", 4.4, 6.0))
    (found,), _ = cut([late], words, voiced(((2.0, 6.0),)))
    assert found.span[0] == 4.0
    before = piece(" Yes", ".", span=(0.0, 1.0))
    parts, placed = cut(
        [before, late], [TimedWord("Yes", (0.5, 1.0)), *words], voiced(((0.5, 1.0), (2.0, 6.0)))
    )
    assert [part.span[0] for part in parts] == [pytest.approx(0.48), 4.0]
    assert placed[1].span == (4.0, 4.4)


def test_a_word_that_voice_activity_misses_keeps_its_time() -> None:
    """If it is loud; a time in silence is the next voice's."""
    wave = voiced(((0.5, 2.0), (3.0, 3.3), (4.0, 5.0))).wave
    window = Window(wave, 0.0, ((0.5, 2.0), (4.0, 5.0)))
    pieces = [piece(" Yes", ".", span=(0.0, 2.9)), piece(" It", " hid", ".", span=(2.9, 5.0))]
    for first, begin in (((3.0, 3.3), 3.0), ((3.4, 3.8), 4.0)):
        words = timed(("Yes", 0.5, 2.0), ("It", *first), ("hid", 4.0, 5.0))
        (_, later), _ = cut(pieces, words, window)
        assert later.span[0] == pytest.approx(begin - 0.02)


def test_a_short_first_word_is_no_silence() -> None:
    """Nor is a short last one: alignment gives them the pauses after and before them."""
    window = voiced(((1.0, 1.2), (1.5, 2.0), (2.3, 2.5)))
    words = timed(("Yes", 1.0, 1.5), ("it", 1.5, 2.0), ("is", 2.0, 2.5))
    (found,), _ = cut([piece(" Yes", " it", " is", span=(1.0, 2.5))], words, window)
    assert found.span == (pytest.approx(1.0), pytest.approx(2.5))
