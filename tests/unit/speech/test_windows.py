"""Cutting recordings while they come in."""

from __future__ import annotations

import random

import numpy as np
import pytest
from numpy.typing import NDArray

from bench.quality.recordings import clicks, jfk
from miniatures.training.speech.clips import Clipper
from miniatures.training.speech.recordings import record
from speech.cutters import Cutter, PauseCutter, TurnCutter
from speech.quiet import quietest
from speech.sounds import between, silence_in, sounding
from speech.vad import RATE, TurnDetection
from speech.windows import LONGEST, Window, halves, may_lack, missed

Floats = NDArray[np.float32]


def cut(cutter: Cutter, wave: Floats, block: int = 50_000) -> list[Window]:
    found = [window for at in range(0, len(wave), block) for window in cutter.feed(wave[at : at + block])]
    return [*found, *cutter.finish()]


def test_a_short_recording_stays_whole(clipper: Clipper) -> None:
    """Up to 30 s, as long as nobody is silent for over a second."""
    clip, wave = record(clipper, 8, "en")
    (window,) = cut(PauseCutter(), wave)
    assert np.array_equal(window.wave, wave)
    assert window.start == 0.0
    assert clip.segments[0].start - 0.2 < window.speech[0][0] < clip.segments[0].start + 0.2


@pytest.mark.parametrize("more", [-1, 0, 1, 300])
def test_thirty_seconds_are_one_window(clipper: Clipper, more: int) -> None:
    """To the sample, although chunks of the voice detector do not divide them; what is longer is two, and
    neither is over 30 s.
    """
    _, wave = record(clipper, 40, "en")
    wave = wave[: LONGEST + more]
    for block in (1_000, 50_000, len(wave)):
        windows = cut(PauseCutter(), wave, block)
        assert len(windows) == (1 if more <= 0 else 2)
        assert max(len(window.wave) for window in windows) <= LONGEST
        assert np.array_equal(np.concatenate([window.wave for window in windows]), wave)


def test_a_recording_without_speech_has_no_windows() -> None:
    """Silence, noise and clicks, however short."""
    noise = np.random.default_rng(1).standard_normal(20 * RATE).astype(np.float32)
    for wave in (np.zeros(20 * RATE, np.float32), 0.01 * noise, clicks(20), noise[:1000]):
        assert cut(PauseCutter(), wave) == []


@pytest.mark.parametrize("level", [0.0, 0.01, 0.04])
def test_noise_in_the_pauses_is_no_sound(level: float) -> None:
    """The voice sounds; so does what voice activity does not know, where it finds nobody at all."""
    rng = np.random.default_rng(1)
    wave = level * rng.standard_normal(5 * RATE)
    wave[16_000:32_000] += 0.2 * rng.standard_normal(16_000)  # from 1 to 2 s
    wave[48_000:56_000] += 0.2 * rng.standard_normal(8000)  # from 3 to 3.5 s
    wave = wave.astype(np.float32)
    sounds = sounding(Window(wave, 0.0, ((1.0, 2.0), (3.0, 3.52))))
    assert np.flatnonzero(sounds.voice)[[0, -1]].tolist() == [50, 174]
    assert silence_in((1.5, 3.2), sounds.voice, 3.2) == (2.0, 3.0)
    assert silence_in((1.2, 1.9), sounds.voice, 1.9) is None
    assert sounding(Window(wave, 0.0)).voice.sum() >= 75


def test_a_pause_that_voice_activity_does_not_hear_is_silence() -> None:
    """From a fifth of a second on; a shorter one may be part of a word. Of several the one that ends near a
    time is a rest, unless another is over twice as long.
    """
    wave = np.random.default_rng(1).standard_normal(5 * RATE).astype(np.float32)
    for begin, end in ((1.0, 1.5), (2.0, 2.3), (3.0, 3.2), (4.0, 4.12)):
        wave[int(begin * RATE) : int(end * RATE)] = 0.0
    voice = sounding(Window(wave, 0.0, ((0.0, 5.0),))).voice
    assert silence_in((0.5, 4.5), voice, 1.5) == (1.0, 1.5)
    assert silence_in((0.5, 4.5), voice, 2.2) == (2.0, 2.3)
    assert silence_in((0.5, 4.5), voice, 3.2) == (2.0, 2.3)
    assert silence_in((2.5, 4.5), voice, 4.1) == (3.0, 3.2)
    assert silence_in((3.5, 4.5), voice, 4.1) is None


@pytest.mark.parametrize(("pause", "found"), [((4.3, 4.5), 4.4), ((4.3, 5.5), 4.45), ((6.0, 6.0), 3.92)])
def test_what_follows_begins_in_a_rest(pause: tuple[float, float], found: float) -> None:
    """However quiet a stop is inside the last word of a text that ends a little earlier; without a rest it
    begins there.
    """
    wave = np.random.default_rng(1).normal(0, 0.1, 6 * RATE).astype(np.float32)
    wave[round(3.9 * RATE) : round(3.94 * RATE)] *= 0.001
    begin, end = pause
    wave[round(begin * RATE) : round(end * RATE)] *= 0.05
    window = Window(wave, 0.0, ((0.0, begin), (end, 6.0)))
    assert between(window, 4.0) == pytest.approx(found, abs=0.02)


def test_long_silence_is_shortened_and_times_stay_true(clipper: Clipper) -> None:
    """Twelve seconds of silence between two sentences: one window with both, whose times are the
    recording's.
    """
    clip, wave = record(clipper, 3, "en")
    silence = np.zeros(12 * RATE, np.float32)
    (window,) = cut(PauseCutter(), np.concatenate([wave, silence, wave]))
    assert window.seconds < 2 * len(wave) / RATE + 2.5
    ((place, left_out),) = window.gaps
    assert left_out > 10
    assert window.time(place, end=True) == pytest.approx(place)
    second = next(begin for begin, _ in window.speech if begin > place)
    assert window.time(second) == pytest.approx(len(wave) / RATE + 12 + clip.segments[0].start, abs=0.2)
    assert window.part(second, window.seconds).start == pytest.approx(window.time(second), abs=1e-3)


def test_the_last_instant_of_a_voice_is_not_heard_in_a_part() -> None:
    """The first segment after it would begin with it, whatever pause follows."""
    whole = Window(np.zeros(10 * 16_000, np.float32), 0.0, ((1.0, 4.005), (6.0, 8.0)))
    assert whole.part(4.0, 10.0).speech == ((2.0, 4.0),)
    assert whole.part(3.9, 10.0).speech == pytest.approx(np.array([(0.0, 0.105), (2.1, 4.1)]))


def test_windows_become_one_and_parts_again() -> None:
    """Sound, speech, and times of the recording stay what they were, silence that was left out among them."""
    wave = np.arange(20 * RATE, dtype=np.float32)
    whole = Window(wave, 100.0, ((1.0, 4.0), (6.0, 15.0)), ((5.0, 60.0), (18.0, 2.0)), goes_on=True)
    for at in (3.0, 5.0, 10.0, 19.0):
        first, second = whole.part(0.0, at), whole.part(at, whole.seconds)
        assert (first.goes_on, second.goes_on) == (True, True)
        again = first.followed(second)
        assert np.array_equal(again.wave, wave)
        assert again.gaps == whole.gaps
        assert sum(end - begin for begin, end in again.speech) == pytest.approx(12.0)
        for place in (0.0, 4.9, 5.0, 5.1, 17.0, 19.5, 20.0):
            assert again.time(place) == pytest.approx(whole.time(place))
            assert whole.place(whole.time(place)) == pytest.approx(place)
    assert whole.place(130.0) == 5.0, "in silence that was left out"
    for samples in range(1, 3000):
        assert not Window(wave[:samples], 0.0).part(0.0, 30.0).goes_on
    later = Window(wave, 200.0)
    assert whole.followed(later).time(25.0) == pytest.approx(205.0)
    assert not whole.followed(later).goes_on


def test_what_may_lack_nothing_lacks_nothing() -> None:
    """Whatever a text covers of a window with too little speech, none of it is `missed`."""
    draw, judged = random.Random(1), 0
    for _ in range(500):
        lengths = [draw.uniform(0, 0.4) for _ in range(3)]
        speech = tuple((n + 0.2, n + 0.2 + length) for n, length in enumerate(lengths))
        window = Window(np.zeros(3 * RATE, np.float32), 0.0, speech)
        covered = [(begin, begin + draw.uniform(0, 1)) for begin in (draw.uniform(0, 3), draw.uniform(0, 3))]
        if not may_lack(window):
            judged += 1
            assert missed(window, covered[: draw.randrange(3)]) is None
    assert judged > 100


def test_missed_speech() -> None:
    """What no segment covers; nothing where only the edges of times are in question."""
    window = Window(np.zeros(20 * RATE, np.float32), 0.0, ((1.0, 4.0), (6.0, 9.0), (12.0, 15.0)))
    assert missed(window, [(0.5, 4.2), (5.8, 9.1), (11.9, 14.6)]) is None
    assert missed(window, [(0.5, 4.2), (11.9, 15.0)]) == (6.0, 9.0)
    assert missed(window, [(0.5, 4.2)]) == (6.0, 15.0)
    assert missed(window, []) == (1.0, 15.0)
    assert missed(Window(window.wave, 0.0, ((1.0, 18.0),)), [(0.0, 6.0)]) == (6.0, 18.0)
    assert missed(Window(window.wave, 0.0, ((1.0, 10.0),)), [(0.9, 4.0), (4.5, 10.1)]) is None


@pytest.mark.parametrize("noise", [0.0, 0.01])
def test_cuts_lie_between_sentences(clipper: Clipper, noise: float) -> None:
    """Five minutes: no window is over 30 s, no word is outside of all, and no cut is inside a sentence, with
    a little noise as well.
    """
    clip, wave = record(clipper, 300, "en")
    wave = (wave + noise * np.random.default_rng(1).standard_normal(len(wave))).astype(np.float32)
    windows = cut(PauseCutter(), wave)
    ends = [window.time(window.seconds, end=True) for window in windows]
    assert all(abs(end - window.start) < 1e-3 for end, window in zip(ends, windows[1:], strict=False)), (
        "sound between two windows is in none"
    )
    assert max(len(window.wave) for window in windows) <= LONGEST
    cuts = [window.start for window in windows[1:]]
    assert len(cuts) > 10
    assert [window.goes_on for window in windows] == [*(True for _ in cuts), False]
    assert not [
        at for at in cuts for segment in clip.segments if segment.start + 0.05 < at < segment.end - 0.05
    ]


def test_the_block_size_changes_nothing(clipper: Clipper) -> None:
    """Windows depend on the sound, not on how it was delivered."""
    _, wave = record(clipper, 100, "es")
    starts = [
        [window.start for window in cut(PauseCutter(), wave, block)] for block in (1_000, 64_000, len(wave))
    ]
    assert starts[0] == starts[1] == starts[2]


def test_windows_without_speech_are_left_out(clipper: Clipper) -> None:
    """A minute of noise between two sentences asks nothing of the engine; offsets stay true."""
    _, wave = record(clipper, 20, "en")
    noise = (0.01 * np.random.default_rng(2).standard_normal(90 * RATE)).astype(np.float32)
    windows = cut(PauseCutter(), np.concatenate([wave, noise, wave]))
    assert sum(len(window.wave) for window in windows) < len(noise)
    assert windows[-1].start > 75


def test_turns_end_in_silence(clipper: Clipper) -> None:
    """chunking_strategy: sentences a second apart are windows of their own, padded, with true offsets."""
    starts, parts, at = [], [np.zeros(RATE, np.float32)], RATE
    for _ in range(4):
        clip, spoken = record(clipper, 3, "en")
        starts.append(at / RATE + clip.segments[0].start)
        parts += [spoken, np.zeros(RATE, np.float32)]
        at += len(spoken) + RATE
    windows = cut(TurnCutter(TurnDetection(silence=0.6)), np.concatenate(parts))
    assert len(windows) == 4
    for window, start in zip(windows, starts, strict=True):
        assert start - 0.5 <= window.start <= start, "no sound of a turn is lost"


def test_a_click_is_a_turn_without_speech() -> None:
    """The real recording ends with one, of which Whisper would make a word; its other turns are speech, at a
    threshold under that of speech as well.
    """
    silence = 1e-4 * np.random.default_rng(1).standard_normal(RATE).astype(np.float32)
    wave = np.concatenate([jfk().wave, silence])
    turns = cut(TurnCutter(TurnDetection()), wave)
    assert [bool(turn.speech) for turn in turns] == [True, True, True, True, False]
    assert 10.7 < turns[-1].start < 10.9
    assert all(turn.speech for turn in cut(TurnCutter(TurnDetection(silence=0.5)), wave))
    assert all(turn.speech for turn in cut(TurnCutter(TurnDetection(threshold=0.1)), wave))


def test_an_endless_turn_is_cut_at_thirty_seconds(clipper: Clipper) -> None:
    """Speech without the silence that was asked for is not kept forever."""
    _, wave = record(clipper, 100, "en")
    windows = cut(TurnCutter(TurnDetection(silence=10.0)), wave)
    assert max(len(window.wave) for window in windows) <= LONGEST
    assert sum(len(window.wave) for window in windows) > 0.9 * len(wave)


def test_halves_meet_at_a_pause(clipper: Clipper) -> None:
    """A window that loops is tried in two parts, which are the window."""
    clip, wave = record(clipper, 25, "en")
    first, second = halves(Window(wave, 100.0))
    assert np.array_equal(np.concatenate([first.wave, second.wave]), wave)
    assert second.start == 100.0 + len(first.wave) / RATE
    at = len(first.wave) / RATE
    assert not [segment for segment in clip.segments if segment.start + 0.05 < at < segment.end - 0.05]


def test_random_sound_never_breaks_the_cutter() -> None:
    """Lengths and levels at random, silence and full scale among them: everything comes out, in order."""
    rng = random.Random(3)
    for _ in range(6):
        wave = (
            rng.choice([0.0, 1e-6, 0.1, 1.0])
            * np.random.default_rng(rng.randrange(99)).uniform(-1, 1, rng.randint(1, 70 * RATE))
        ).astype(np.float32)
        for cutter in (PauseCutter(), TurnCutter(TurnDetection())):
            starts = [window.start for window in cut(cutter, wave)]
            assert starts == sorted(starts)


@pytest.mark.parametrize("at", [0.0, 0.13, 0.4])
def test_the_quietest_place_is_found(at: float) -> None:
    """A rest of 60 ms, to 10 ms; what is too short to have one ends the wave."""
    wave = np.random.default_rng(2).normal(0, 0.1, RATE * 46 // 100).astype(np.float32)
    begin = round(at * RATE)
    wave[begin : begin + RATE * 60 // 1000] *= 0.3
    assert abs(quietest(wave) / RATE - at - 0.03) <= 0.01
    assert quietest(wave[:100]) == 100
