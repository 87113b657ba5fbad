"""What the gateway makes of doubtful answers, full houses and clients that go. The double answers as the
façade does.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest

from conch.deployment import Pool
from speech.options import Options
from speech.transcriber import Transcriber
from speech.transcript import Segment, Transcript, joined
from speech.tuning import TUNING
from speech.windows import Window

POOL = Pool("mini", "whisper", (0, 1), {})
PLAIN = Options("transcribe", "en", "", 0.0, timestamps=False)
DETECTED = replace(PLAIN, language=None)
CONTEXT = replace(PLAIN, previous_text=True)
ONCE = replace(CONTEXT, prompt="Once")
WITH_TIMES = replace(POOL, capabilities=frozenset({"word_timestamps"}))


def segment(start: float, end: float, text: str) -> Segment:
    return Segment(start, end, text, (), -0.1, 0.0)


LOOP = "one two " * 60
Answer = tuple[str, float, bool]


def number(seconds: float, *_: Any) -> Answer:
    """The length of the window."""
    return f"{seconds:.0f}.", -0.1, False


@dataclass
class Facade:
    """Answers with what `says` gives for (window seconds, temperature, prompt): text, average log
    probability, truncated.

    `reaches`: the share of a window after which its one segment ends. `words`: times of a window's words.
    """

    says: Callable[[float, float, str], Answer] = number
    no_speech: float = 0.0
    reaches: Callable[[float], float] = lambda seconds: 1.0
    words: tuple[tuple[float, float], ...] = ()
    asked: list[tuple[float, float, str]] = field(default_factory=list)
    beams: list[int] = field(default_factory=list)
    outputs: list[list[str]] = field(default_factory=list)
    inside: int = 0
    most: int = 0

    async def infer(
        self, pool: Pool, arrays: dict[str, Any], outputs: list[str], request_id: str
    ) -> dict[str, Any]:
        seconds = arrays["WAV"].size / 16000
        temperature = float(arrays.get("TEMPERATURE", np.zeros(1)).item())
        prompt = arrays["TEXT_PREFIX"].item().decode()
        self.asked.append((round(seconds, 2), round(temperature, 1), prompt))
        self.outputs.append(outputs)
        self.beams.append(int(arrays.get("BEAM_WIDTH", np.ones(1)).item()))
        self.inside += 1
        self.most = max(self.most, self.inside)
        await asyncio.sleep(0.01)
        self.inside -= 1
        if outputs == ["NO_SPEECH_PROB"]:
            return {"NO_SPEECH_PROB": np.array([[self.no_speech]])}
        text, average, truncated = self.says(seconds, temperature, prompt)
        strings = np.array([text.encode()], object)
        known = {
            "TRANSCRIPTS": strings,
            "LANGUAGE": np.array([b"es"], object),
            "AVG_LOGPROB": np.array([[average]]),
            "TRUNCATED": np.array([[truncated]]),
        }
        spoken = 1 if text else 0
        segments = {
            "SEGMENT_TEXTS": strings[:spoken],
            "SEGMENT_TIMES": np.array([[[0.0, self.reaches(seconds) * seconds]] * spoken]),
            "SEGMENT_SIZES": np.array([[3] * spoken], np.int32),
            "TOKEN_LOGPROBS": np.full((1, 3), average, np.float32),
            "WORD_TEXTS": np.array([b"word"] * len(self.words), object),
            "WORD_TIMES": np.array(self.words, np.float32).reshape(1, -1, 2),
            "NO_SPEECH_PROB": np.array([[self.no_speech]]),
        }
        answer = {**known, **segments, "TOKENS": np.zeros((1, 3), np.int32), "PROMPT_TOKENS": np.array([[4]])}
        return {name: value for name, value in answer.items() if name in outputs}

    def before(self) -> list[str]:
        """The part of each prompt with the text before its window."""
        return [prompt.partition("<|startoftranscript|>")[0] for *_, prompt in self.asked]


def transcribe(
    facade: Facade,
    seconds: list[float],
    options: Options = PLAIN,
    speech: tuple[tuple[float, float], ...] = (),
    pool: Pool = POOL,
    *,
    goes_on: bool = False,
) -> Transcript:
    """`goes_on`: the speech goes on from each window to the next."""

    async def windows() -> AsyncIterator[Window]:
        at = 0.0
        for n, length in enumerate(seconds, 1):
            wave = np.full(int(length * 16000), 0.1, np.float32)
            yield Window(wave, at, speech, goes_on=goes_on and n < len(seconds))
            at += length

    async def run() -> Transcript:
        return joined(
            [part async for part in Transcriber(facade, 3).transcribe(pool, windows(), options, "id")]
        )  # type: ignore[arg-type]

    return asyncio.run(run())


def test_a_sure_answer_is_taken() -> None:
    """One request a window, three at once, in order: nobody goes on from one to the next."""
    facade = Facade()
    assert transcribe(facade, [5, 6, 7, 8, 9]).text == "5. 6. 7. 8. 9."
    assert len(facade.asked) == 5
    assert facade.most == 3


def test_a_window_without_words_is_no_error() -> None:
    """Also where the engine gives times of words."""
    assert transcribe(Facade(lambda *_: ("", -0.1, False)), [5], pool=WITH_TIMES).text == ""


def test_unlikely_words_are_tried_at_higher_temperatures() -> None:
    """The first that is not doubtful counts; if all are, the likeliest."""
    facade = Facade(
        lambda _, temperature, __: (f"at {temperature:.1f}", -0.5 if temperature >= 0.35 else -2.0, False)
    )
    assert transcribe(facade, [5]).text == "at 0.4"
    never = Facade(lambda _, temperature, __: (f"at {temperature:.1f}", -2.0 + temperature / 2, False))
    assert transcribe(never, [5]).text == "at 1.0"
    assert [temperature for _, temperature, _ in never.asked[2:]] == [0.2, 0.4, 0.6, 0.8, 1.0]


def test_a_fixed_temperature_stays() -> None:
    """Who names one gets it, doubtful or not."""
    facade = Facade(lambda *_: ("perhaps", -2.0, False))
    assert transcribe(facade, [5], replace(PLAIN, temperature=0.6)).text == "perhaps"
    assert {temperature for _, temperature, _ in facade.asked} <= {0.6, 0.0}


def test_unlikely_words_in_silence_are_no_words() -> None:
    """The model itself is asked whether anybody speaks, once and only then."""
    facade = Facade(lambda *_: ("Thank you.", -1.5, False), no_speech=0.9)
    assert transcribe(facade, [5]).text == ""
    assert len(facade.asked) == 2


@pytest.mark.parametrize("bad", [(LOOP, -0.1, False), ("cut off", -0.1, True)], ids=["loop", "truncated"])
def test_a_window_that_loops_is_split(bad: Answer) -> None:
    """Loops and answers at the token limit are asked again in halves, whose words are put together
    in order.
    """
    facade = Facade(lambda seconds, *_: bad if seconds > 15 else number(seconds))
    assert transcribe(facade, [28]).text.count(".") == 2
    assert facade.asked[0][0] == 28
    assert sum(seconds for seconds, *_ in facade.asked[1:]) == pytest.approx(28, abs=0.1)


def test_a_short_loop_climbs_the_ladder() -> None:
    """Under four seconds there is nothing to split."""
    facade = Facade(
        lambda _, temperature, __: (LOOP, -0.1, False) if temperature < 0.5 else ("fine", -0.3, False)
    )
    assert transcribe(facade, [3]).text == "fine"


def test_a_text_that_ends_at_a_pause_goes_on() -> None:
    """Speech after the last segment is asked for again, from there on and alone; the words come in order,
    with the recording's times.
    """
    facade = Facade(reaches=lambda seconds: 0.25 if seconds == 20 else 1.0)
    found = transcribe(facade, [20], speech=((0.5, 4.5), (7.0, 12.0), (14.0, 19.0)))
    assert found.text == "20. 12."
    assert [seconds for seconds, *_ in facade.asked] == [20, 12]
    assert [time for segment in found.segments for time in (segment.start, segment.end)] == pytest.approx(
        [0.5, 4.5, 7.0, 19.0], abs=0.05
    )
    assert found.duration == 20


def test_speech_that_the_times_just_miss_is_not_asked_for_again() -> None:
    """Times of segments are not exact: half a second of an utterance that was written down is no reason."""
    for end, requests in ((18.5, 1), (18.7, 2)):
        facade = Facade(lambda *_: ("All.", -0.1, False), reaches=lambda _: 0.9)
        transcribe(facade, [20], speech=((1.0, end),))
        assert len(facade.asked) == requests


def test_a_word_reaches_to_the_next_one() -> None:
    """Alignment gives the end of a sentence to its full stop as often as to its last word."""
    slow = Facade(lambda *_: ("slow words", -0.1, False), words=((1.0, 1.9), (2.0, 2.1)))
    transcribe(slow, [4], speech=((1.0, 1.9), (2.0, 3.5)), pool=WITH_TIMES)
    assert len(slow.asked) == 1


@pytest.mark.parametrize(
    ("speech", "words", "asked"), [(0.5, False, False), (0.7, False, True), (0.5, True, True)]
)
def test_times_of_words_are_asked_for_where_speech_could_be_missed(
    speech: float, words: bool, asked: bool
) -> None:
    """They cost a second look at the whole text."""
    facade = Facade(lambda *_: ("Yes.", -0.1, False), words=((1.0, 1.4),))
    transcribe(facade, [4], replace(PLAIN, words=words), speech=((1.0, 1.0 + speech),), pool=WITH_TIMES)
    assert [("WORD_TIMES" in outputs) for outputs in facade.outputs] == [asked]


def test_speech_without_words_is_asked_for_so_often_and_no_more() -> None:
    """A model that stays silent, and one that is always in doubt: the work is bounded."""
    facade = Facade(lambda *_: ("", -0.1, False))
    assert transcribe(facade, [20], speech=((1.0, 5.0), (7.0, 12.0))).text == ""
    assert len(facade.asked) == 2
    doubtful = Facade(lambda *_: (LOOP, -3.0, True), reaches=lambda _: 0.1)
    transcribe(doubtful, [29], speech=tuple((float(at), at + 1.0) for at in range(0, 28, 2)))
    assert len(doubtful.asked) <= TUNING.tries + 3, "beside a request for each half that was left"


@pytest.mark.parametrize(("multilingual", "known"), [(False, [False, True, True]), (True, [False] * 3)])
def test_the_first_window_settles_the_language(multilingual: bool, known: list[bool]) -> None:
    """Detection costs a second look, so it is done once, unless each window may have its own."""
    facade = Facade(lambda *_: ("hola", -0.1, False))
    options = replace(DETECTED, multilingual=multilingual)
    assert transcribe(facade, [5, 6, 7], options).language == "es"
    assert ["<|es|>" in prompt for *_, prompt in facade.asked] == known


def test_words_that_are_there_already_are_not_written_twice() -> None:
    """Where only the times were wrong, asking again brings the same words."""
    facade = Facade(
        lambda seconds, *_: ("One, two. Three four!" if seconds == 20 else "three four", -0.1, False),
        reaches=lambda s: 0.25 if s == 20 else 1.0,
    )
    assert transcribe(facade, [20], speech=((0.5, 4.5), (7.0, 12.0))).text == "One, two. Three four!"
    assert len(facade.asked) == 2


@pytest.mark.parametrize(
    ("asked", "beams"),
    [
        ({}, 3),
        ({"beam_width": 1}, 1),
        ({"beam_width": 5}, 5),
        ({"draft": True}, 1),
        ({"temperature": 0.5}, 1),
    ],
)
def test_a_pool_says_how_many_beams_a_window_gets(asked: dict[str, Any], beams: int) -> None:
    """Unless the client names a number; words that are only looked at get one, and so does chance."""
    facade = Facade(lambda seconds, temperature, _: ("some words", -0.1, False))
    transcribe(facade, [20, 20], replace(PLAIN, **asked), pool=replace(POOL, beams=3))
    assert facade.beams == [beams, beams]


def test_no_beams_at_higher_temperatures_nor_for_silence() -> None:
    """A doubtful window's other requests."""
    facade = Facade(lambda seconds, temperature, _: ("some words", -1.5, False))
    transcribe(facade, [2], pool=replace(POOL, beams=3))
    assert facade.beams == [3, *[1] * (len(facade.beams) - 1)]
    assert len(facade.beams) == 7
    assert facade.outputs[1] == ["NO_SPEECH_PROB"]
