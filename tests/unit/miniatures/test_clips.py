"""The sound and the expected text that the miniature Whisper is trained on."""

from __future__ import annotations

from itertools import pairwise

import pytest

from build.whisper_vocabulary import whisper_tokenizer
from miniatures.training.speech.clips import PAUSE, Clipper, Dictation, SpeechClip
from miniatures.training.speech.corpus import Corpus

ROOM = 30 * 16_000


@pytest.fixture(scope="module")
def dictation() -> Dictation:
    return Dictation(whisper_tokenizer(99))


def early(clipper: Clipper) -> list[SpeechClip]:
    found = [clipper.speech(ROOM, ends_early=True) for _ in range(20)]
    return [clip for clip in found if clip.written is not None]


def test_a_text_ends_at_a_pause_although_others_speak(clipper: Clipper, dictation: Dictation) -> None:
    """The ids are those of the sentences before a long pause, with the time of the last one's end; without
    times the text is whole.
    """
    clips = early(clipper)
    assert len(clips) > 10
    for clip in clips:
        assert 0 < clip.written < len(clip.segments)
        pauses = [after.start - before.end for before, after in pairwise(clip.segments)]
        assert PAUSE[0] - 1e-3 < pauses[clip.written - 1] < PAUSE[1] + 1e-3
        before = SpeechClip(clip.language, clip.samples, clip.pieces, clip.segments[: clip.written])
        for task in ("transcribe", "translate"):
            timed = list(dictation.spoken(clip, task, timestamps=True))
            assert timed == list(dictation.spoken(before, task, timestamps=True))
            assert timed[-1] == dictation.time(before.segments[-1].end)
            assert len(list(dictation.spoken(clip, task, timestamps=False))) > len(timed) - 2 * clip.written


def test_what_follows_is_heard(clipper: Clipper) -> None:
    """The sound after the pause is there: the text goes on in a window that begins there."""
    for clip in early(clipper):
        following = clip.segments[clip.written]
        sound = clipper.wave(clip)[int(following.start * 16_000) : int(following.end * 16_000)]
        assert abs(sound).max() > 0.01


def test_other_clips_are_what_they_were(corpus: Corpus, clipper: Clipper) -> None:
    """Without being asked no clip ends early, and tests' recordings stay the same."""
    again = Clipper(corpus, type(clipper.rng)(1))
    clips = [clipper.speech(ROOM) for _ in range(5)]
    assert [clip.written for clip in clips] == [None] * 5
    assert clips == [again.speech(ROOM, ends_early=False) for _ in range(5)]


@pytest.mark.slow  # torch
def test_training_takes_them_when_told(corpus: Corpus, clipper: Clipper, dictation: Dictation) -> None:
    """A share of the windows; the text of each has times."""
    from miniatures.training.speech.train import Batches

    for share, some in ((0.0, False), (0.5, True)):
        batches = Batches(corpus, 1, 10, share)
        batches.rng, batches.clipper, batches.dictation = clipper.rng, clipper, dictation
        clips = [batches._clip(ROOM) for _ in range(40)]
        ended = [clip for clip in clips if clip.written is not None]
        assert bool(ended) == some
        for clip in ended:
            ids, silent = batches._sequence(clip, 0)
            assert ids[silent + 2] >= batches.dictation.special("0.00")
