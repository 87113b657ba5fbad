"""Windows that are told what was spoken before them, and windows that go on."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from conch.errors import ApiError

from .test_transcriber import CONTEXT, LOOP, ONCE, PLAIN, Answer, Facade, number, transcribe


def test_doubtful_words_are_no_context() -> None:
    """After a window whose words came at a high temperature the next begins without a prompt
    (openai/whisper's reset).
    """

    def says(seconds: float, temperature: float, _: str) -> Answer:
        doubt = ("doubt", -2.0 if temperature < 0.7 else -0.5, False)
        return doubt if seconds == 6 else number(seconds)

    facade = Facade(says)
    transcribe(facade, [5, 6, 7], ONCE)
    assert "startofprev" not in facade.asked[-1][2]
    assert "<|startofprev|> Once<|0.00|> 5.<|5.00|>" in facade.asked[1][2]


def test_a_window_that_goes_on_ends_where_its_text_does() -> None:
    """With the text before it: 30 s at a time, and what the text of one does not reach is transcribed with
    what follows, from the quietest place around its end: the first, where all are alike. A text that stops
    early is completed, and so is each where the number of tokens is limited.
    """

    def asked(reaches: float, **chosen: int) -> list[tuple[float, str]]:
        facade = Facade(reaches=lambda s: reaches if s == 30 else 1.0)
        options = replace(CONTEXT, **chosen)
        found = transcribe(facade, [20, 20, 10], options, ((0.0, 10.0),), goes_on=True)
        assert found.duration == pytest.approx(50)
        assert all(before.end <= after.start for before, after in pairwise(found.segments))
        return [(one[0], before) for one, before in zip(facade.asked, facade.before(), strict=True)]

    assert asked(0.8) == [(30, ""), (26.27, "<|startofprev|><|0.00|> 30.<|24.00|>"), (26.27, "")]
    assert [seconds for seconds, _ in asked(0.1)] == [30, 27, 27, 20, 20]
    assert [seconds for seconds, _ in asked(0.8, max_tokens=3)] == [30, 20]


@pytest.mark.parametrize("wrong", [(LOOP, -0.1, True), ("Wrong.", -2.0, False)], ids=["loop", "unlikely"])
def test_text_that_makes_the_next_go_wrong_is_forgotten(wrong: Answer) -> None:
    """Words that loop or are unlikely with the text before them are asked for without it, before anything
    else; what follows starts a new context.
    """

    def says(seconds: float, _: float, prompt: str) -> Answer:
        return wrong if seconds == 6 and "startofprev" in prompt else number(seconds)

    facade = Facade(says)
    assert transcribe(facade, [5, 6, 7], ONCE).text == "5. 6. 7."
    assert facade.before() == [
        "<|startofprev|> Once",
        "<|startofprev|> Once<|0.00|> 5.<|5.00|>",
        "<|startofprev|> Once",
        "",
        "<|startofprev|><|0.00|> 6.<|6.00|>",
        "",
    ]


@pytest.mark.parametrize("alone", [-0.2, -0.44, -0.46, -0.6])
def test_a_text_after_another_is_compared_with_one_that_stands_alone(alone: float) -> None:
    """Both are asked for at once, and the likelier is taken, in doubt the one that stands alone; a client's
    own prompt is no reason to ask twice, and both know it.
    """

    def says(seconds: float, _: float, prompt: str) -> Answer:
        knows = seconds == 5 or "5." in prompt
        return (f"{seconds:.0f}.", -0.4, False) if knows else ("New.", alone, False)

    facade = Facade(says)
    assert transcribe(facade, [5, 6], ONCE).text == ("5. New." if alone > -0.45 else "5. 6.")
    assert facade.most == 2
    assert facade.before() == [
        "<|startofprev|> Once",
        "<|startofprev|> Once<|0.00|> 5.<|5.00|>",
        "<|startofprev|> Once",
    ]


def test_of_two_texts_one_that_loops_is_not_taken() -> None:
    """However likely it is; and what comes next knows nothing of the text that spoilt it."""

    def says(seconds: float, _: float, prompt: str) -> Answer:
        spoilt = seconds == 6 and "5." in prompt
        return (LOOP, -0.05, True) if spoilt else (f"{seconds:.0f}.", -0.3, False)

    facade = Facade(says)
    assert transcribe(facade, [5, 6, 7], CONTEXT).text == "5. 6. 7."
    assert facade.before() == [
        "",
        "<|startofprev|><|0.00|> 5.<|5.00|>",
        "",
        "<|startofprev|><|0.00|> 6.<|6.00|>",
        "",
    ]


def test_a_failure_of_one_of_two_ends_both() -> None:
    """No request is left in the pool."""

    def says(seconds: float, _: float, prompt: str) -> Answer:
        if seconds == 6 and "5." in prompt:
            raise ApiError(503, "away")
        return number(seconds)

    facade = Facade(says)
    with pytest.raises(ApiError, match="away"):
        transcribe(facade, [5, 6, 7], CONTEXT)
    assert len(facade.asked) == 3


@pytest.mark.parametrize(
    ("times", "second", "text"),
    [
        ((20.0, 29.0), "and b", "A. 20."),
        ((18.0, 29.0), "and b", "A. and b 11."),  # over ten seconds would be transcribed again
        ((22.0, 29.0), "And b.", "A. And b. 11."),
        ((22.0, 30.0), "And b.", "A. 18."),  # its end was cut off, and guessed
        ((22.0, 29.6), "And b.", "A. 18."),
    ],
)
@pytest.mark.parametrize("previous_text", [False, True])
def test_a_window_begins_with_a_sentence(
    times: tuple[float, float], second: str, text: str, *, previous_text: bool
) -> None:
    """A sentence that does not end inside a window is transcribed again with the next one."""

    class TwoSegments(Facade):
        async def infer(self, *arguments: Any) -> dict[str, Any]:
            answer = await super().infer(*arguments)
            if arguments[1]["WAV"].size == 30 * 16000:
                answer["TRANSCRIPTS"] = np.array([f"A. {second}".encode()], object)
                answer["SEGMENT_TEXTS"] = np.array([b"A.", second.encode()], object)
                answer["SEGMENT_TIMES"] = np.array([[[0.0, times[0]], times]])
                answer["SEGMENT_SIZES"] = np.array([[2, 1]], np.int32)
            return answer

    facade = TwoSegments()
    options = replace(PLAIN, previous_text=previous_text)
    assert transcribe(facade, [20, 20], options, ((0.0, 20.0),), goes_on=True).text == text


def test_little_behind_the_last_text_is_no_window() -> None:
    """Sound that a text did not reach, in which hardly anybody speaks: words would be made up."""
    facade = Facade(reaches=lambda s: 0.9 if s == 30 else 1.0)
    assert transcribe(facade, [20, 12], CONTEXT, ((0.0, 7.3),), goes_on=True).text == "30."


def test_previous_text_goes_along() -> None:
    """With condition_on_previous_text windows wait for each other; without, the prompt belongs to the first
    alone.
    """
    facade = Facade()
    transcribe(facade, [5, 6, 7], ONCE)
    assert [seconds for seconds, *_ in facade.asked] == [5, 6, 6, 7, 7]
    assert "Once<|0.00|> 5.<|5.00|><|0.00|> 6.<|6.00|>" in facade.asked[3][2]
    plain = Facade()
    transcribe(plain, [5, 6], replace(PLAIN, prompt="Once"))
    assert ["Once" in prompt for *_, prompt in plain.asked] == [True, False]
