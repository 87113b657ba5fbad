"""Segments that go on over a pause are cut there, with their words, tokens and times."""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate
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
from speech.transcript import completed, joined
from speech.windows import Window

SECONDS = 20
Span = tuple[float, float]
Spans = tuple[Span, ...]
TIMED = Options("transcribe", "en", prompt="", temperature=0.0, timestamps=True)


def voiced(speech: Spans, start: float = 0.0, gaps: Spans = ()) -> Window:
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


def timed(*words: tuple[str, float, float]) -> list[TimedWord]:
    return [TimedWord(text, (begin, end)) for text, begin, end in words]


def fox(*times: Span) -> list[TimedWord]:
    """The words of FOX."""
    return [
        TimedWord(text, span) for text, span in zip(("The", "fox", "ran", "It", "hid"), times, strict=True)
    ]


FOX = piece(" The", " fox", " ran", ".", " It", ' "', "hid", '".')
VOICED = voiced(((0.2, 2.0), (4.0, 5.0)), 5.0)


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
    (first, second), placed = cut([FOX], fox(*times), VOICED)
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
    (first, second), _ = cut([piece(*spelled)], timed((words[0], 0.5, 1.5), (words[1], 4.1, 5.0)), VOICED)
    assert (first.text, second.text) == texts
    assert first.tokens + second.tokens == tuple(range(len(spelled) + 2))
    for part in (first, second):
        assert b"".join(t for t in part.spelled if not t.startswith(b"<|")).decode().strip() == part.text
        assert len(part.tokens) == len(part.spelled)


def test_words_that_are_said_in_a_pause_stay() -> None:
    """Somebody whispers where voice activity finds nobody: the segment covers it."""
    window = voiced(((0.2, 2.0), (6.0, 7.0)))
    words = timed(("The", 0.5, 1.5), ("fox", 3.5, 4.0), ("ran", 6.0, 7.0))
    whole = piece(" The", " fox", " ran")
    (found,), placed = cut([whole], words, window)
    assert found == replace(whole, span=found.span)
    assert placed == words


def test_each_pause_cuts() -> None:
    """Three utterances, and words are counted over several segments."""
    window = voiced(((0.0, 1.0), (2.5, 3.0), (5.0, 6.0), (6.3, 7.0)))
    before = piece(" Yes", ".", span=(0.0, 0.5))
    long = piece(" one", " two", " one", " two", span=(0.5, 7.0))
    words = timed(
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
@pytest.mark.parametrize("given", ["before", "later"])
def test_a_segment_is_cut_at_a_rest_behind_a_sentence(
    stop: str, rest: float, texts: list[str], given: str
) -> None:
    """One that voice activity goes on over, whichever word alignment gives it; at a comma nobody is done."""
    long = piece(" The", " fox", " ran", stop, " It", " hid", ".", span=(0.0, 4.0))
    wave = voiced(((0.5, 4.0),)).wave
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
    wave = voiced(((0.5, 2.0), (2.3, 4.0))).wave
    whole = piece(" Hola", ".", " ¿", "Qué", "?", span=(0.4, 4.0))
    words = timed(("Hola", 0.5, 2.0), ("Qué", 2.2, 4.0))
    found, _ = cut([whole], words, Window(wave, 0.0, ((0.5, 4.0),)))
    assert [part.text for part in found] == ["Hola.", "¿Qué?"]


def test_what_was_left_out_of_a_window_is_a_pause() -> None:
    """20 s of silence that the model was not sent: times do not cross."""
    window = voiced(((0.2, 2.0), (2.2, 5.0)), 0.0, ((2.1, 20.0),))
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
    words = timed(("The", *first), ("fox", *second))
    (found,), placed = cut([whole], words, voiced(speech))
    assert found == replace(whole, span=found.span)
    assert [word.text for word in placed] == ["The", "fox"]


def test_nothing_is_cut_without_times_of_words() -> None:
    """Nor where it is not known what tokens spell; silence at the ends is left out all the same."""
    mute = SpeechPiece(FOX.span, FOX.text, FOX.tokens, FOX.log_probs)
    words = timed(("The", 0.5, 1.0), ("fox", 4.0, 5.0))
    span = (pytest.approx(0.18), pytest.approx(5.02))
    for whole, own in ((FOX, []), (mute, words)):
        (found,), placed = cut([whole], own, VOICED)
        assert (found, found.span) == (replace(whole, span=found.span), span)
        assert placed == own


def test_no_byte_is_lost_whatever_the_words() -> None:
    """Bytes that are no character, and words that do not stand in the text."""
    odd = SpeechPiece((0.0, 9.0), "a \ufffd b c", (0, 1, 2, 3), (-0.1,) * 4, (b" a", b" \xff", b" b", b" c"))
    for words in (
        timed(("a", 0.5, 1.0), ("\ufffd", 1.0, 2.0), ("b", 4.0, 4.5), ("c", 4.5, 5.0)),
        timed(("a", 0.5, 1.0), ("c", 4.5, 5.0)),
        timed(("x", 0.5, 1.0)),
    ):
        found, _ = cut([odd], words, VOICED)
        assert [token for part in found for token in part.tokens] == [0, 1, 2, 3]
        assert list(accumulate(part.text for part in found))[-1].replace(" ", "") == "a\ufffdbc"


def test_words_that_are_not_in_the_text_do_no_harm() -> None:
    """Each with a blank before it: the first cut leaves a text that begins with none."""
    window = voiced(((0.0, 1.0), (2.5, 3.0), (5.0, 6.0)))
    long = SpeechPiece((0.0, 7.0), " one two three", (0, 1, 2), (-0.1,) * 3, (b" one", b" two", b" three"))
    words = timed((" one", 0.0, 0.9), (" two", 2.5, 3.0), (" three", 5.0, 6.0))
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
    window = voiced(tuple(zip(voices[::2], voices[1::2], strict=False)))
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
    found = attempt_of(answer(FOX, words=words), VOICED, options, 0.0).transcript
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
    found = attempt_of(answer(FOX, words=words), VOICED, replace(TIMED, words=True), 0.0).transcript
    times = [(round(word.start - VOICED.start, 2), round(word.end - VOICED.start, 2)) for word in found.words]
    assert times == [(0.18, 0.5), (0.5, 1.2), (1.2, 2.02), (3.98, 4.4), (4.5, 5.02)]


def test_translations_have_blanks() -> None:
    """Their text is English, whatever was spoken."""
    words = fox((0.2, 0.5), (0.5, 1.2), (1.2, 2.0), (4.0, 4.4), (4.5, 5.0))
    for task, blank in (("translate", " "), ("transcribe", "")):
        options = replace(TIMED, task=task, language="zh")
        found = attempt_of(answer(FOX, words=words), VOICED, options, 0.0).transcript
        assert joined([found, found]).text == blank.join([found.text] * 2)
        more = replace(found, segments=found.segments[1:])
        assert completed(found, more).text == blank.join(["The fox ran.", 'It "hid".', 'It "hid".'])
