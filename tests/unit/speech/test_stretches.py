"""Which windows are transcribed in turn, and which at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass, field, replace

import numpy as np
import pytest

from speech.options import Options
from speech.stretches import Stretches, ends
from speech.transcript import Transcript
from speech.windows import Window

PLAIN = Options("transcribe", "en", "Once", 0.0, timestamps=False)


def window(start: float, seconds: float = 30, *, goes_on: bool = True) -> Window:
    """Somebody speaks."""
    wave = np.zeros(int(seconds * 16_000), np.float32)
    return Window(wave, start, ((0.0, seconds),), goes_on=goes_on)


@dataclass
class Ear:
    """Says where each window begins, after `waits[start]`; `silent`: but for those."""

    waits: dict[float, float] = field(default_factory=dict)
    silent: frozenset[float] = frozenset()
    asked: list[tuple[float, bool, str | None, str]] = field(default_factory=list)
    inside: int = 0
    most: int = 0

    async def __call__(
        self, windows: AsyncIterator[Window], options: Options
    ) -> AsyncGenerator[Transcript, None]:
        async for one in windows:
            self.inside += 1
            self.most = max(self.most, self.inside)
            await asyncio.sleep(self.waits.get(one.start, 0.001))
            self.inside -= 1
            self.asked.append((one.start, one.goes_on, options.language, options.prompt))
            options = replace(options, prompt="")
            yield Transcript("" if one.start in self.silent else f"{one.start:.0f}", "es", one.seconds)


def hear(ear: Ear, windows: list[Window], options: Options = PLAIN, at_once: int = 3) -> list[str]:
    """The texts, in the order in which they are given out; what is ready is given out before each window."""

    async def run() -> list[str]:
        stretches, found = Stretches(ear, options, at_once), list[Transcript]()
        try:
            for one in windows:
                found += [part async for part in stretches.ready()]
                stretches.add(one)
            found += [part async for part in stretches.remaining()]
        finally:
            await stretches.stop()
        assert not stretches.running
        return [part.text for part in found]

    return asyncio.run(run())


@pytest.mark.parametrize(
    ("seconds", "goes_on", "ended"),
    [(30, True, False), (119, True, False), (120, True, True), (5, False, True)],
)
def test_a_stretch_ends_after_two_minutes(seconds: float, goes_on: bool, ended: bool) -> None:
    """And always where nobody goes on."""
    assert ends(window(0, goes_on=goes_on), seconds) == ended


def test_stretches_are_heard_at_once_and_given_out_in_order() -> None:
    """At most so many, and each to its end: its last window does not go on."""
    ear = Ear(waits={0: 0.05})
    windows = [window(30 * i) for i in range(20)]
    assert hear(ear, windows) == [f"{30 * i}" for i in range(20)]
    assert ear.most == 3
    assert ear.asked[0][0] > 0  # later stretches did not wait for the first
    assert {start for start, goes_on, *_ in ear.asked if not goes_on} == {90, 210, 330, 450, 570}


def test_the_prompt_is_the_firsts() -> None:
    """The client's prompt comes before the recording."""
    ear = Ear()
    hear(ear, [window(0, goes_on=False), window(30, goes_on=False)])
    assert [(start, prompt) for start, _, _, prompt in sorted(ear.asked)] == [(0, "Once"), (30, "")]


def test_the_first_words_settle_the_language() -> None:
    """Stretches after them wait for it; one in which nobody speaks settles nothing."""
    ear = Ear(silent=frozenset({0}))
    options = replace(PLAIN, language=None)
    assert hear(ear, [window(30 * i, goes_on=False) for i in range(4)], options) == ["", "30", "60", "90"]
    assert [(start, language, prompt) for start, _, language, prompt in ear.asked] == [
        (0, None, "Once"),
        (30, None, "Once"),
        (60, "es", ""),
        (90, "es", ""),
    ]


@pytest.mark.parametrize("limit", [{"max_tokens": 3}, {"draft": True}])
def test_a_window_that_may_break_off_stands_alone(limit: dict[str, int]) -> None:
    """Where its text ends says nothing about where the next sentence begins."""
    ear = Ear()
    hear(ear, [window(0), window(30)], replace(PLAIN, **limit))
    assert not any(goes_on for _, goes_on, *_ in ear.asked)


def test_a_failure_ends_all() -> None:
    """Also of a stretch that nobody has come to yet, and of one that is still being cut."""

    class Fails(Ear):
        async def __call__(
            self, windows: AsyncIterator[Window], options: Options
        ) -> AsyncGenerator[Transcript, None]:
            async for part in super().__call__(windows, options):
                if part.text == "30":
                    raise RuntimeError("gone")
                yield part

    for goes_on in (False, True):
        with pytest.raises(RuntimeError, match="gone"):
            hear(Fails(), [window(30 * i, goes_on=goes_on) for i in range(3)])
