"""Who spoke when, with a model that takes the value of a sample for its speaker: sums of powers of two are
several at once. Local speakers come in another order in each window, as a real segmentation gives them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from itertools import islice

import numpy as np
import pytest

from speech.speakers.diarize import diarize
from speech.speakers.labels import labelled, labels, letters
from speech.speakers.local import SPEAKERS_OF, Chunk, windows
from speech.speakers.model import Count, Floats
from speech.speakers.references import BadReference, voice_of
from speech.speakers.tuning import FIRST, FRAME, FRAMES, RATE, WINDOW
from speech.speakers.turns import Diarization, Turn
from speech.transcript import Segment, Transcript, Word, joined

UNIT = 1 / 64  # the first speaker's samples; the next one's are twice that
Truth = Sequence[tuple[float, float, int]]


class Voices:
    """A VoiceModel of six speakers; vectors of one differ a little."""

    def __init__(self) -> None:
        self.rng = np.random.default_rng(7)
        self.base = np.linalg.qr(self.rng.standard_normal((192, 192)))[0][:6].astype(np.float32)
        self.rows: list[int] = []

    async def segment(self, rows: Floats) -> Floats:
        assert rows.shape[1] == WINDOW
        self.rows.append(len(rows))
        return np.stack([self._segmented(row) for row in rows])

    def _segmented(self, row: Floats) -> Floats:
        frames = np.round(row[FIRST : FIRST + FRAMES * FRAME].reshape(FRAMES, FRAME)[:, FRAME // 2] / UNIT)
        bits = (frames.astype(int)[:, None] >> np.arange(6)) & 1
        there = self.rng.permutation(np.flatnonzero(bits.any(0)))[:3]
        active = np.zeros((FRAMES, 3))
        active[:, : len(there)] = bits[:, there]
        exact = (active[:, None] == SPEAKERS_OF).all(-1)
        return np.where(exact, np.log(0.97), np.log(0.005)).astype(np.float32)

    async def embed(self, rows: Floats) -> Floats:
        """By the value that most samples have; of several at once a mixture."""
        assert rows.shape[1] in (RATE, 2 * RATE)
        found = []
        for row in rows:
            values, counts = np.unique(np.round(row / UNIT).astype(int), return_counts=True)
            bits = (values[:, None] >> np.arange(6)) & 1
            mixed = (counts[:, None] * bits).sum(0) @ self.base
            found.append(mixed + 0.03 * np.abs(mixed).max() * self.rng.standard_normal(192))
        return np.array(found, np.float32)


def sound(truth: Truth, seconds: float) -> Floats:
    made = np.zeros(round(seconds * RATE), np.float32)
    for start, end, speaker in truth:
        made[round(start * RATE) : round(end * RATE)] += UNIT * 2**speaker
    return made


async def batches(wave: Floats, block: int) -> AsyncIterator[list[Chunk]]:
    source = windows(wave[at : at + block] for at in range(0, len(wave), block))
    while batch := list(islice(source, 8)):
        yield batch


def diarized(truth: Truth, seconds: float, count: Count | None = None, block: int = 64_000) -> Diarization:
    return asyncio.run(diarize(Voices(), batches(sound(truth, seconds), block), count or Count()))


def conversation(seed: int, speakers: int, turns: int) -> tuple[list[tuple[float, float, int]], float]:
    rng, at, found = np.random.default_rng(seed), 0.6, []
    for number in range(turns):
        length = rng.uniform(3.2, 9.0)  # of four speakers in ten seconds a segmentation knows three
        found.append((round(at, 3), round(at + length, 3), number % speakers))
        at += length + rng.uniform(0.4, 1.5)
    return found, at


@pytest.mark.parametrize(("seed", "speakers"), [(1, 2), (2, 3), (3, 5), (4, 6), (5, 1)])
def test_turns_are_those_of_the_recording(seed: int, speakers: int) -> None:
    truth, seconds = conversation(seed, speakers, 40)
    turns = diarized(truth, seconds).turns
    assert [turn.speaker for turn in turns] == [speaker for _, _, speaker in truth]
    wrong = max(
        abs(turn.start - start) + abs(turn.end - end)
        for turn, (start, end, _) in zip(turns, truth, strict=True)
    )
    assert wrong < 0.05


@pytest.mark.parametrize("seconds", [0.8, 9.9, WINDOW / RATE, WINDOW / RATE + 1 / RATE, 15.0, 20.1])
def test_recordings_of_any_length(seconds: float) -> None:
    truth = [(0.1, seconds - 0.1, 0)]
    (turn,) = diarized(truth, seconds).turns
    assert (turn.start, turn.end) == (pytest.approx(0.1, abs=0.05), pytest.approx(seconds - 0.1, abs=0.05))


@pytest.mark.parametrize("block", [1_000, 79_920, 160_000, 10_000_000])
def test_blocks_do_not_matter(block: int) -> None:
    truth, seconds = conversation(6, 3, 12)
    assert diarized(truth, seconds, block=block).turns == diarized(truth, seconds).turns


def test_windows_hold_no_more_than_a_window_of_sound() -> None:
    source = windows(np.zeros(64_000, np.float32) for _ in range(1_000))
    assert (
        max(window.sound.base.size if window.sound.base is not None else WINDOW for window in source)
        < 4 * WINDOW
    )


def test_nobody() -> None:
    diarization = diarized([], 30.0)
    assert (diarization.turns, len(diarization.voices)) == ((), 0)
    made = labelled(
        Transcript("a", segments=(segment(0, 1, "a"),), words=words(("a", 0.1, 0.9))), diarization, ()
    )
    assert (made.segments[0].speaker, made.words[0].speaker) == ("A", "A"), "words that a model made up"


def test_two_at_once() -> None:
    diarization = diarized([(0.5, 8.0, 0), (6.0, 14.0, 1), (15.0, 20.0, 0)], 21.0)
    assert [(round(turn.start), round(turn.end), turn.speaker) for turn in diarization.turns] == [
        (0, 8, 0),
        (6, 14, 1),
        (15, 20, 0),
    ]
    assert diarization.overlaps(6.3, 7.5)
    assert not diarization.overlaps(3.0, 5.0)


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_a_known_number_of_speakers(count: int) -> None:
    truth, seconds = conversation(8, 3, 30)
    assert len(diarized(truth, seconds, Count(count, count)).voices) == count


def test_somebody_who_speaks_for_seconds_of_an_hour_is_nobody_new() -> None:
    """A noise or a laugh has a vector of its own and is given to the nearest speaker."""
    truth, seconds = conversation(9, 2, 200)
    diarization = diarized([*truth, (seconds, seconds + 1.2, 4)], seconds + 2)
    assert len(diarization.voices) == 2


def test_letters() -> None:
    found = list(islice(letters(), 60))
    assert (found[0], found[25], found[26], found[51], found[52]) == ("A", "Z", "AA", "AZ", "BA")


def test_known_speakers_have_their_names() -> None:
    voices = np.eye(4, 192, dtype=np.float32)
    assert labels(voices, ["Ann", "B"], voices[[2, 0]]) == ("B", "A", "Ann", "C")
    assert labels(voices[:1], ["Ann"], voices[[3]]) == ("A",), "nobody sounds like that"
    tilted = 0.5 * voices[:2] + 0.866 * voices[2:]  # the same voices on a telephone
    assert labels(tilted, ["Ann", "Bob"], voices[:2]) == ("Ann", "Bob")
    assert labels(np.array([tilted[0], voices[1], voices[3]]), ["Ann", "Bob"], voices[:2]) == (
        "A",
        "Bob",
        "B",
    )
    assert labels(voices, [], np.empty((0, 192), np.float32)) == ("A", "B", "C", "D")


def segment(start: float, end: float, text: str) -> Segment:
    return Segment(start, end, text, (1, 2), -0.1, 0.0)


def words(*rows: tuple[str, float, float]) -> tuple[Word, ...]:
    return tuple(Word(*row) for row in rows)


def turns(*rows: tuple[float, float, int]) -> Diarization:
    activity = np.zeros((2000, max(speaker for _, _, speaker in rows) + 1), np.float32)
    for start, end, speaker in rows:
        activity[round(start * RATE / FRAME) : round(end * RATE / FRAME), speaker] = 1.0
    return Diarization(
        activity, np.eye(activity.shape[1], dtype=np.float32), tuple(Turn(*row) for row in rows)
    )


def by_speakers(whole: Segment, spoken: tuple[Word, ...], diarization: Diarization) -> Transcript:
    """A transcript of one segment, with the names of those who speak."""
    return labelled(Transcript(whole.text, segments=(whole,), words=spoken), diarization, ("A", "B"))


def test_a_segment_is_cut_where_its_speaker_changes() -> None:
    first = words(("Are", 0.1, 0.4), ("you", 0.4, 0.6), ("there?", 0.6, 1.0))
    second = words(("Yes,", 1.3, 1.6), ("I", 1.6, 1.7), ("am.", 1.7, 2.0))
    whole = segment(0.1, 2.0, "Are you there? Yes, I am.")
    made = by_speakers(whole, first + second, turns((0.0, 1.1, 0), (1.2, 2.1, 1)))
    assert [(part.speaker, part.text, part.start, part.end) for part in made.segments] == [
        ("A", "Are you there?", 0.1, 1.0),
        ("B", "Yes, I am.", 1.3, 2.0),
    ]
    assert [word.speaker for word in made.words] == ["A"] * 3 + ["B"] * 3
    assert made.text == "Are you there? Yes, I am."
    assert [part.tokens for part in made.segments] == [(), ()]


@pytest.mark.parametrize(
    ("change", "pause", "speakers"),
    [
        (0.6, 0.0, "BBBB"),  # a turn that was found late
        (1.3, 0.0, "AABB"),  # half of a sentence is no edge of it
        (0.6, 0.4, "ABBB"),  # somebody who interrupts
    ],
)
def test_a_speaker_changes_where_a_sentence_does(change: float, pause: float, speakers: str) -> None:
    starts = [0.1, 0.6 + pause, 1.2 + pause, 1.8 + pause]
    spoken = words(*((word, start, start + 0.5) for word, start in zip("abcd", starts, strict=True)))
    joint = words(*((word.text, word.start, word.end + (0.0 if pause else 0.1)) for word in spoken))
    made = by_speakers(segment(0.1, 3.0, "a b c d."), joint, turns((0.0, change, 0), (change, 3.0, 1)))
    assert "".join(word.speaker for word in made.words) == speakers


def test_a_segment_of_one_speaker_stays_as_it_is() -> None:
    whole = segment(0.1, 2.0, "Hello.")
    made = by_speakers(whole, words(("Hello.", 0.2, 0.9)), turns((0.0, 2.1, 0)))
    assert made.segments[0].tokens == whole.tokens
    assert (made.segments[0].speaker, made.segments[0].text) == ("A", "Hello.")


def test_without_times_of_words_a_segment_is_whoever_speaks_most_in_it() -> None:
    made = by_speakers(segment(0.0, 3.0, "a b"), (), turns((0.0, 1.0, 0), (1.0, 3.0, 1)))
    assert [part.speaker for part in made.segments] == ["B"]


def test_words_without_a_turn_go_to_the_nearest() -> None:
    diarization = turns((0.0, 1.0, 0), (5.0, 6.0, 1))
    assert (
        diarization.speaker_of(1.5, 1.8),
        diarization.speaker_of(4.0, 4.2),
        diarization.speaker_of(90.0, 91.0),
    ) == (
        0,
        1,
        1,
    )


def test_every_word_of_many_segments_finds_its_own() -> None:
    """Texts that begin alike, and words that stand twice."""
    parts, rows = [], list[tuple[float, float, int]]()
    for number in range(6):
        at = number * 2.0
        rows += [(at, at + 1.0, 0), (at + 1.0, at + 1.6, 1)]
        spoken = words(("no,", at + 0.1, at + 0.3), ("no", at + 0.3, at + 0.6), ("no", at + 1.1, at + 1.4))
        parts.append(Transcript("no, no no", segments=(segment(at, at + 1.5, "no, no no"),), words=spoken))
    made = labelled(joined(parts), turns(*rows), ("A", "B"))
    assert [(part.speaker, part.text) for part in made.segments] == [("A", "no, no"), ("B", "no")] * 6


@pytest.mark.parametrize(
    ("truth", "seconds", "says"),
    [
        ([(0.0, 1.5, 0)], 1.5, "is 1.5 s long; send 2 to 10 s"),
        ([(0.0, 12.0, 0)], 12.0, "is longer than 10 s"),
        ([], 4.0, "has 0.0 s of speech"),
        ([(0.0, 3.0, 0), (3.5, 7.0, 1)], 7.0, "has more than one voice"),
    ],
)
def test_references_that_show_no_voice(truth: Truth, seconds: float, says: str) -> None:
    with pytest.raises(BadReference, match=says):
        asyncio.run(voice_of(Voices(), sound(truth, seconds)))


def test_a_reference_of_one_voice() -> None:
    model = Voices()
    vector = asyncio.run(voice_of(model, sound([(0.2, 4.5, 3)], 5.0)))
    assert vector @ model.base[3] > 0.9
