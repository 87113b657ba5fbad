"""Segments that go on over a pause are cut there, with their words, tokens and times."""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from speech import pauses
from speech.attempt import attempt_of
from speech.options import Options
from speech.pauses import SpeechPiece, TimedWord
from speech.sounds import sounding
from speech.transcript import Segment, Transcript, Word, completed, first_segments, joined, ordered
from speech.windows import Window

SECONDS = 20
Span = tuple[float, float]
Spans = tuple[Span, ...]
TIMED = Options("transcribe", "en", prompt="", temperature=0.0, timestamps=True)


def heard(speech: Spans, start: float = 0.0, gaps: Spans = ()) -> Window:
    """A window that sounds where somebody speaks."""
    wave = np.zeros(16_000 * SECONDS, np.float32)
    for begin, end in speech:
        span = wave[int(begin * 16_000) : int(end * 16_000)]
        span += np.random.default_rng(1).standard_normal(len(span))
    return Window(wave, start, speech, gaps)


def cut(
    pieces: list[SpeechPiece], words: list[TimedWord], window: Window
) -> tuple[list[SpeechPiece], list[TimedWord]]:
    return pauses.cut(pieces, words, window, sounding(window))


def piece(*spelled: str, span: Span = (0.0, 9.0)) -> SpeechPiece:
    """A segment of these tokens between two timestamps."""
    tokens = (f"<|{span[0]:.2f}|>", *spelled, f"<|{span[1]:.2f}|>")
    return SpeechPiece(
        span,
        "".join(spelled).strip(),
        tuple(range(len(tokens))),
        tuple(-0.1 * i for i in range(len(tokens))),
        tuple(token.encode() for token in tokens),
    )


def said(*words: tuple[str, float, float]) -> list[TimedWord]:
    return [TimedWord(text, (begin, end)) for text, begin, end in words]


def fox(*times: Span) -> list[TimedWord]:
    """The words of FOX."""
    return [
        TimedWord(text, span) for text, span in zip(("The", "fox", "ran", "It", "hid"), times, strict=True)
    ]


FOX = piece(" The", " fox", " ran", ".", " It", ' "', "hid", '".')
HEARD = heard(((0.2, 2.0), (4.0, 5.0)), 5.0)


@pytest.mark.parametrize(
    "times",
    [
        ((0.2, 0.5), (0.5, 1.2), (1.2, 2.0), (4.0, 4.4), (4.5, 5.0)),
        # Alignment gives the pause to the word before it, to the one after it, or puts a word into it.
        ((0.2, 0.5), (0.5, 1.2), (1.2, 3.9), (4.0, 4.4), (4.5, 5.0)),
        ((0.2, 0.5), (0.5, 1.2), (1.2, 2.0), (2.0, 4.4), (4.5, 5.0)),
        ((0.2, 0.5), (0.5, 1.2), (2.1, 2.3), (3.6, 3.9), (4.5, 5.0)),
    ],
)
def test_a_segment_is_cut_at_a_pause(times: Spans) -> None:
    """Two seconds without a voice: two segments, each with its own words, tokens and probabilities."""
    (first, second), placed = cut([FOX], fox(*times), HEARD)
    assert (first.text, second.text) == ("The fox ran.", 'It "hid".')
    assert first.span == (pytest.approx(0.18), pytest.approx(2.02, abs=0.21))
    assert second.span == (pytest.approx(3.98, abs=0.21), pytest.approx(5.02))
    assert (first.tokens, second.tokens) == ((0, 1, 2, 3, 4), (5, 6, 7, 8, 9))
    assert first.log_probs + second.log_probs == FOX.log_probs
    assert second.spelled[0] == b" It"
    assert [word.text for word in placed] == ["The", "fox", "ran", "It", "hid"]
    for part, own in ((first, placed[:3]), (second, placed[3:])):
        assert all(part.span[0] <= time <= part.span[1] for word in own for time in word.span)


@pytest.mark.parametrize(
    ("spelled", "words", "texts"),
    [
        (("¿", "Qué", "?", ' "', "Nada", '".'), ("Qué", "Nada"), ("¿Qué?", '"Nada".')),
        (("你好", "。", "《", "世界", "》"), ("你好", "世界"), ("你好。", "《世界》")),
        ((" -", " Where", "?", " -", " Here", "."), ("Where", "Here"), ("- Where?", "- Here.")),
        ((" Il", " dit", " :", " «", " Oui", " »"), ("dit", "Oui"), ("Il dit :", "« Oui »")),
        (("言", "った", "。", "「", "そう", "」"), ("った", "そう"), ("言った。", "「そう」")),
        (("\u3000", "言", "った", "。", "そう"), ("った", "そう"), ("言った。", "そう")),
        ((' "', "Go", '."', " Then", " what"), ("Go", "Then"), ('"Go."', "Then what")),
    ],
)
def test_punctuation_goes_where_it_belongs(
    spelled: tuple[str, ...], words: tuple[str, str], texts: tuple[str, str]
) -> None:
    """And each part has its own tokens, which spell its text; characters of several bytes are counted as
    such.
    """
    (first, second), _ = cut([piece(*spelled)], said((words[0], 0.5, 1.5), (words[1], 4.1, 5.0)), HEARD)
    assert (first.text, second.text) == texts
    assert first.tokens + second.tokens == tuple(range(len(spelled) + 2))
    for part in (first, second):
        assert b"".join(t for t in part.spelled if not t.startswith(b"<|")).decode().strip() == part.text
        assert len(part.tokens) == len(part.spelled)


def test_words_that_are_said_in_a_pause_stay() -> None:
    """Somebody whispers where voice activity finds nobody: the segment covers it."""
    window = heard(((0.2, 2.0), (6.0, 7.0)))
    words = said(("The", 0.5, 1.5), ("fox", 3.5, 4.0), ("ran", 6.0, 7.0))
    whole = piece(" The", " fox", " ran")
    (found,), placed = cut([whole], words, window)
    assert found == replace(whole, span=found.span)
    assert placed == words


def test_each_pause_cuts() -> None:
    """Three utterances, and words are counted over several segments."""
    window = heard(((0.0, 1.0), (2.5, 3.0), (5.0, 6.0), (6.3, 7.0)))
    before = piece(" Yes", ".", span=(0.0, 0.5))
    long = piece(" one", " two", " one", " two", span=(0.5, 7.0))
    words = said(
        ("Yes", 0.0, 0.4), ("one", 0.5, 1.0), ("two", 2.5, 3.0), ("one", 5.0, 6.0), ("two", 6.3, 7.0)
    )
    found, placed = cut([before, long], words, window)
    assert [part.text for part in found] == ["Yes.", "one", "two", "one two"]
    assert [token for part in found[1:] for token in part.tokens] == list(long.tokens)
    ends = [time for part in found for time in part.span]
    assert ends == sorted(ends)
    assert placed == words


@pytest.mark.parametrize(
    ("stop", "rest", "texts"),
    [
        (".", 0.3, ["The fox ran.", "It hid."]),
        ('."', 0.3, ['The fox ran."', "It hid."]),
        (",", 0.3, ["The fox ran, It hid."]),
        (".", 0.1, ["The fox ran. It hid."]),
    ],
)
@pytest.mark.parametrize("given", ["before", "behind"])
def test_a_segment_is_cut_at_a_rest_behind_a_sentence(
    stop: str, rest: float, texts: list[str], given: str
) -> None:
    """One that voice activity goes on over, whichever word alignment gives it; at a comma nobody is done."""
    long = piece(" The", " fox", " ran", stop, " It", " hid", ".", span=(0.0, 4.0))
    wave = heard(((0.5, 4.0),)).wave
    wave[32_000 : 32_000 + int(rest * 16_000)] = 0.0
    between = 2.0 + rest if given == "before" else 2.0
    words = fox((0.5, 0.9), (0.9, 1.4), (1.4, between), (between, 2.6), (2.6, 4.0))
    found, placed = cut([long], words, Window(wave, 0.0, ((0.5, 4.0),)))
    assert [part.text for part in found] == texts
    assert [word.text for word in placed] == ["The", "fox", "ran", "It", "hid"]
    if len(found) == 2:
        assert found[0].span == (pytest.approx(0.48), pytest.approx(2.02))
        assert found[1].span == (pytest.approx(1.98 + rest), pytest.approx(4.0))
        assert placed[2].span[1] <= 2.02
        assert placed[3].span[0] >= 1.98 + rest - 1e-9


def test_what_opens_a_sentence_goes_with_it_at_a_rest() -> None:
    """As it does at a pause."""
    wave = heard(((0.5, 2.0), (2.3, 4.0))).wave
    whole = piece(" Hola", ".", " ¿", "Qué", "?", span=(0.4, 4.0))
    words = said(("Hola", 0.5, 2.0), ("Qué", 2.2, 4.0))
    found, _ = cut([whole], words, Window(wave, 0.0, ((0.5, 4.0),)))
    assert [part.text for part in found] == ["Hola.", "¿Qué?"]


@pytest.mark.parametrize("between", [1.8, 2.3, 3.2])
def test_segments_begin_and_end_where_they_sound(between: float) -> None:
    """The model's time lies in the last word, in the pause or in the first word after it; words whose times
    keep to it go along.
    """
    before = piece(" The", " fox", ".", span=(0.0, between))
    behind = piece(" It", " hid", ".", span=(between, 6.0))
    words = said(
        ("The", 0.0, 1.1), ("fox", 1.1, between), ("It", between, max(3.1, between)), ("hid", 3.3, 4.0)
    )
    (first, second), placed = cut([before, behind], words, heard(((0.5, 2.0), (2.8, 4.0))))
    assert first.span == (pytest.approx(0.48), pytest.approx(2.02))
    assert second.span == (pytest.approx(2.78), pytest.approx(4.02))
    assert placed[1].span == (1.1, first.span[1])
    assert placed[2].span[0] == second.span[0]


@pytest.mark.parametrize("span", [(0.0, 3.0), (3.2, 9.0), (7.0, 9.0)])
def test_a_segment_is_where_its_words_are(span: Span) -> None:
    """The model's own times run ahead of the sound, or lag it."""
    words = said(("It", 4.0, 4.4), ("hid", 4.5, 6.0))
    (found,), placed = cut([piece(" It", " hid", ".", span=span)], words, heard(((0.0, 6.0), (6.5, 9.0))))
    assert found.span == (pytest.approx(4.0), pytest.approx(6.02))
    assert placed[0] == words[0]


def test_words_of_a_translation_do_not_move_their_segment() -> None:
    """They are in another order than what was spoken."""
    words = said(("It", 4.0, 4.4), ("hid", 4.5, 6.0))
    window = heard(((0.0, 9.0),))
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
    behind = max(end, 0.5)
    words = said(("The", 0.0, end), ("fox", behind, 2.0), ("ran", 2.0, span[1]))
    (found,), placed = cut([piece(" The", " fox", " ran", span=span)], words, heard(speech))
    assert found.span == (pytest.approx(begin), pytest.approx(span[1]))
    assert placed[0].span[0] == pytest.approx(begin, abs=0.03)


def test_words_never_overlap() -> None:
    """The model's timestamp is after the first word, and the sound begins inside it."""
    words = said(("The", 1.0, 1.28), ("fox", 1.28, 1.6), ("ran", 1.6, 1.98), (".", 1.98, 2.0))
    _, placed = cut([piece(" The", " fox", " ran", ".", span=(1.3, 1.96))], words, heard(((1.1, 2.0),)))
    assert [word.span for word in placed] == [
        (pytest.approx(1.1, abs=0.03), 1.28),
        (1.28, 1.6),
        (1.6, 1.98),
        (1.98, pytest.approx(2.0, abs=0.03)),
    ]


def test_words_without_length_do_not_move_others() -> None:
    """Alignment gives two tokens one frame now and then."""
    words = said(("The", 1.0, 1.3), ("fox", 1.3, 2.0), ("ran", 2.0, 2.0), ("It", 3.0, 3.5))
    pieces = [piece(" The", " fox", " ran", span=(1.0, 2.0)), piece(" It", span=(3.0, 3.5))]
    _, placed = cut(pieces, words, heard(((1.0, 2.3), (3.0, 3.5))))
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
    window = replace(heard((*speech, noise)), speech=speech)
    (we, saw, seen), (the, fox, done) = words
    pieces = [piece(" We", " saw", ".", span=spans[0]), piece(" The", " fox", span=spans[1])]
    spoken = said(("We", we, saw), ("saw", saw, seen), ("The", the, fox), ("fox", fox, done))
    (first, second), placed = cut(pieces, spoken, window)
    assert (first.span[1], second.span[0]) == pytest.approx(expected)
    assert all(word.span[0] < word.span[1] for word in placed)


def test_a_segment_does_not_grow_over_speech_that_was_left_out() -> None:
    """Two seconds of it: what is found there later comes before the segment."""
    late = piece(" It", " hid", ".", span=(4.0, 6.0))
    words = said(("It", 4.0, 4.4), ("hid", 4.4, 6.0))
    (found,), _ = cut([late], words, heard(((2.0, 6.0),)))
    assert found.span[0] == 4.0
    before = piece(" Yes", ".", span=(0.0, 1.0))
    parts, placed = cut(
        [before, late], [TimedWord("Yes", (0.5, 1.0)), *words], heard(((0.5, 1.0), (2.0, 6.0)))
    )
    assert [part.span[0] for part in parts] == [pytest.approx(0.48), 4.0]
    assert placed[1].span == (4.0, 4.4)


def test_a_word_that_voice_activity_misses_keeps_its_time() -> None:
    """If it is loud; a time in silence is the next voice's."""
    wave = heard(((0.5, 2.0), (3.0, 3.3), (4.0, 5.0))).wave
    window = Window(wave, 0.0, ((0.5, 2.0), (4.0, 5.0)))
    pieces = [piece(" Yes", ".", span=(0.0, 2.9)), piece(" It", " hid", ".", span=(2.9, 5.0))]
    for first, begin in (((3.0, 3.3), 3.0), ((3.4, 3.8), 4.0)):
        words = said(("Yes", 0.5, 2.0), ("It", *first), ("hid", 4.0, 5.0))
        (_, behind), _ = cut(pieces, words, window)
        assert behind.span[0] == pytest.approx(begin - 0.02)


def test_a_short_first_word_is_no_silence() -> None:
    """Nor is a short last one: alignment gives them the pauses after and before them."""
    window = heard(((1.0, 1.2), (1.5, 2.0), (2.3, 2.5)))
    words = said(("Yes", 1.0, 1.5), ("it", 1.5, 2.0), ("is", 2.0, 2.5))
    (found,), _ = cut([piece(" Yes", " it", " is", span=(1.0, 2.5))], words, window)
    assert found.span == (pytest.approx(1.0), pytest.approx(2.5))


def test_what_was_left_out_of_a_window_is_a_pause() -> None:
    """20 s of silence that the model was not sent: times do not cross."""
    window = heard(((0.2, 2.0), (2.2, 5.0)), 0.0, ((2.1, 20.0),))
    words = fox((0.2, 0.5), (0.5, 1.2), (1.2, 2.0), (2.2, 3.0), (3.0, 4.0))
    (first, second), _ = cut([FOX], words, window)
    assert first.text == "The fox ran."
    assert first.span[1] <= second.span[0]
    assert window.time(first.span[1], end=True) < 2.3 < 22.0 < window.time(second.span[0])


@pytest.mark.parametrize(
    ("speech", "span", "first", "second"),
    [
        (((0.2, 2.0), (2.9, 5.0)), (0.0, 9.0), (0.5, 1.5), (4.0, 5.0)),  # too short a pause
        (((0.2, 2.0), (4.0, 5.0)), (0.0, 3.0), (0.5, 1.5), (1.5, 2.0)),  # the segment ends in the pause
        (((0.2, 2.0), (4.0, 5.0)), (2.1, 9.0), (4.0, 4.4), (4.5, 5.0)),  # it begins there
        ((), (0.0, 9.0), (0.5, 1.5), (4.0, 5.0)),
    ],
)
def test_other_segments_stay_whole(speech: Spans, span: Span, first: Span, second: Span) -> None:
    """A segment without a pause inside."""
    whole = piece(" The", " fox", span=span)
    words = said(("The", *first), ("fox", *second))
    (found,), placed = cut([whole], words, heard(speech))
    assert found == replace(whole, span=found.span)
    assert [word.text for word in placed] == ["The", "fox"]


def test_nothing_is_cut_without_times_of_words() -> None:
    """Nor where it is not known what tokens spell; silence at the ends is left out all the same."""
    mute = SpeechPiece(FOX.span, FOX.text, FOX.tokens, FOX.log_probs)
    words = said(("The", 0.5, 1.0), ("fox", 4.0, 5.0))
    span = (pytest.approx(0.18), pytest.approx(5.02))
    for whole, own in ((FOX, []), (mute, words)):
        (found,), placed = cut([whole], own, HEARD)
        assert (found, found.span) == (replace(whole, span=found.span), span)
        assert placed == own


def test_no_byte_is_lost_whatever_the_words() -> None:
    """Bytes that are no character, and words that do not stand in the text."""
    odd = SpeechPiece((0.0, 9.0), "a \ufffd b c", (0, 1, 2, 3), (-0.1,) * 4, (b" a", b" \xff", b" b", b" c"))
    for words in (
        said(("a", 0.5, 1.0), ("\ufffd", 1.0, 2.0), ("b", 4.0, 4.5), ("c", 4.5, 5.0)),
        said(("a", 0.5, 1.0), ("c", 4.5, 5.0)),
        said(("x", 0.5, 1.0)),
    ):
        found, _ = cut([odd], words, HEARD)
        assert [token for part in found for token in part.tokens] == [0, 1, 2, 3]
        assert list(accumulate(part.text for part in found))[-1].replace(" ", "") == "a\ufffdbc"


def test_words_that_are_not_in_the_text_do_no_harm() -> None:
    """Each with a blank before it: the first cut leaves a text that begins with none."""
    window = heard(((0.0, 1.0), (2.5, 3.0), (5.0, 6.0)))
    long = SpeechPiece((0.0, 7.0), " one two three", (0, 1, 2), (-0.1,) * 3, (b" one", b" two", b" three"))
    words = said((" one", 0.0, 0.9), (" two", 2.5, 3.0), (" three", 5.0, 6.0))
    found, _ = cut([long], words, window)
    assert [token for part in found for token in part.tokens] == [0, 1, 2]
    assert found[0].text == "one"


TIMES = st.lists(st.floats(0, 20, allow_nan=False, width=32), max_size=16).map(sorted)


@given(
    st.lists(
        st.sampled_from([b" one", b" two", b".", b' "', b"\xe4\xbd", b"\xa0", b"<|1.00|>"]), max_size=12
    ),
    st.lists(st.sampled_from(["one", "two", " one", "\u4f60", "\ufffd", ""]), max_size=8),
    TIMES,
    TIMES,
)
def test_tokens_are_kept_whatever_comes(
    spelled: list[bytes], texts: list[str], voices: list[float], times: list[float]
) -> None:
    """Words and voices anywhere: every token in its order, and times that do not run backwards."""
    whole = SpeechPiece(
        (0.0, 20.0),
        b"".join(token for token in spelled if not token.startswith(b"<")).decode(errors="replace").strip(),
        tuple(range(len(spelled))),
        (-0.1,) * len(spelled),
        tuple(spelled),
    )
    words = [
        TimedWord(text, span)
        for text, span in zip(texts, zip(times[::2], times[1::2], strict=False), strict=False)
    ]
    window = heard(tuple(zip(voices[::2], voices[1::2], strict=False)))
    found, placed = cut([whole], words, window)
    assert [token for part in found for token in part.tokens] == list(range(len(spelled)))
    ends = [time for part in found for time in part.span]
    assert ends == sorted(ends)
    assert [word.text for word in placed] == [word.text for word in words]


def answer(*pieces: SpeechPiece, words: list[TimedWord]) -> dict[str, Any]:
    """What the façade says."""
    ids = [token for one in pieces for token in one.tokens]
    return {
        "TRANSCRIPTS": np.array([" ".join(one.text for one in pieces).encode()], object),
        "AVG_LOGPROB": np.array([[-0.1]]),
        "TRUNCATED": np.array([[False]]),
        "PROMPT_TOKENS": np.array([[4]]),
        "TOKENS": np.array([ids], np.int32),
        "TOKEN_LOGPROBS": np.array([[value for one in pieces for value in one.log_probs]], np.float32),
        "TOKEN_BYTES": np.array([[spelled for one in pieces for spelled in one.spelled]], object),
        "SEGMENT_TEXTS": np.array([[one.text.encode() for one in pieces]], object),
        "SEGMENT_TIMES": np.array([[one.span for one in pieces]], np.float32),
        "SEGMENT_SIZES": np.array([[len(one.tokens) for one in pieces]], np.int32),
        "WORD_TEXTS": np.array([[word.text.encode() for word in words]], object),
        "WORD_TIMES": np.array([[word.span for word in words]], np.float32),
    }


def test_a_transcript_has_the_parts() -> None:
    """Segments and words in seconds of the recording, log probabilities without timestamps, and as context
    each part with its own times.
    """
    words = fox((0.2, 0.5), (0.5, 1.2), (1.2, 3.9), (4.0, 4.4), (4.5, 5.0))
    options = replace(TIMED, words=True, log_probs=True)
    found = attempt_of(answer(FOX, words=words), HEARD, options, 0.0).transcript
    assert [segment.text for segment in found.segments] == ["The fox ran.", 'It "hid".']
    assert found.text == 'The fox ran. It "hid".'
    first, second = found.segments
    assert 5.0 <= first.start <= first.end <= 7.25
    assert 8.75 <= second.start <= second.end <= 14.0
    assert [pair[0] for pair in found.token_log_probs] == [t for t in FOX.spelled if not t.startswith(b"<|")]
    assert first.timed == "<|0.18|> The fox ran.<|2.02|>"
    assert second.timed == '<|3.98|> It "hid".<|5.02|>'
    for word, segment in zip(found.words, [first] * 3 + [second] * 2, strict=True):
        assert segment.start - 0.3 <= word.start <= word.end <= segment.end + 0.3


def test_words_have_no_pauses() -> None:
    """Alignment gives them to the words next to them, at the beginning of a window too."""
    words = fox((0.0, 0.5), (0.5, 1.2), (1.2, 3.1), (3.1, 4.4), (4.5, 6.0))
    found = attempt_of(answer(FOX, words=words), HEARD, replace(TIMED, words=True), 0.0).transcript
    times = [(round(word.start - HEARD.start, 2), round(word.end - HEARD.start, 2)) for word in found.words]
    assert times == [(0.18, 0.5), (0.5, 1.2), (1.2, 2.02), (3.98, 4.4), (4.5, 5.02)]


def test_translations_have_blanks() -> None:
    """Their text is English, whatever was spoken."""
    words = fox((0.2, 0.5), (0.5, 1.2), (1.2, 2.0), (4.0, 4.4), (4.5, 5.0))
    for task, blank in (("translate", " "), ("transcribe", "")):
        options = replace(TIMED, task=task, language="zh")
        found = attempt_of(answer(FOX, words=words), HEARD, options, 0.0).transcript
        assert joined([found, found]).text == blank.join([found.text] * 2)
        more = replace(found, segments=found.segments[1:])
        assert completed(found, more).text == blank.join(["The fox ran.", 'It "hid".', 'It "hid".'])


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
