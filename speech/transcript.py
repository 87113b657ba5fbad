"""Transcripts of windows and recordings, and how parts are joined."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import TypeVar

from conch.whisper import BLANKLESS


@dataclass(frozen=True)
class Segment:
    """Words with their times in seconds from the start of the recording.

    Attributes:
        window: start of the window that they came from
        log_probs: spelling and log probability of each token, if requested
        timed: the text with the model's timestamps in the window, which is context for what follows
        speaker: name, if speakers were distinguished
    """

    start: float
    end: float
    text: str
    tokens: tuple[int, ...]
    avg_logprob: float
    no_speech_prob: float
    temperature: float = 0.0
    window: float = 0.0
    log_probs: tuple[tuple[bytes, float], ...] = ()
    timed: str = ""
    speaker: str = ""


@dataclass(frozen=True)
class Word:
    """A word and its times in seconds from the start of the recording.

    Attributes:
        speaker: name, if speakers were distinguished
        overlap: somebody else speaks at that time
    """

    text: str
    start: float
    end: float
    speaker: str = ""
    overlap: bool = False


Timed = TypeVar("Timed", Segment, Word)


@dataclass(frozen=True)
class Transcript:
    """The text of a window or of a recording. Token counts are what the model read and generated.

    Attributes:
        language: the spoken one
        joint: separator between two parts of the text, which is English in a translation
    """

    text: str = ""
    language: str = ""
    duration: float = 0.0
    segments: tuple[Segment, ...] = ()
    words: tuple[Word, ...] = ()
    prompt_tokens: int = 0
    output_tokens: int = 0
    joint: str = " "
    several: tuple[str, ...] = ()

    @property
    def languages(self) -> tuple[str, ...]:
        """Return the spoken languages in order of appearance; empty where nobody speaks."""
        return self.several or ((self.language,) if self.text and self.language else ())

    @property
    def token_log_probs(self) -> tuple[tuple[bytes, float], ...]:
        """Return those of all segments."""
        return tuple(pair for segment in self.segments for pair in segment.log_probs)


def joint_of(task: str, language: str) -> str:
    """Return the separator between two texts of a task, for audio in a language."""
    return "" if task == "transcribe" and language in BLANKLESS else " "


def joined(parts: Sequence[Transcript]) -> Transcript:
    """Join parts in order; the language is that of the first words."""
    language = next(
        (part.language for part in parts if part.text), next((part.language for part in parts), "")
    )
    joint = next((part.joint for part in parts if part.text), " ")
    return Transcript(
        joint.join(part.text for part in parts if part.text),
        language,
        sum(part.duration for part in parts),
        tuple(segment for part in parts for segment in part.segments),
        tuple(word for part in parts for word in part.words),
        sum(part.prompt_tokens for part in parts),
        sum(part.output_tokens for part in parts),
        joint,
        tuple(dict.fromkeys(code for part in parts for code in part.languages)),
    )


def ordered(part: Transcript, time: float, *, spoken: bool) -> Transcript:
    """Return a transcript in which nothing begins before a time, in seconds of the recording, nor before what
    precedes it has ended. Only `spoken` words are in the order of the sound, not those of a translation.
    """
    segments, words = _ordered(part.segments, time, spoken=True), _ordered(part.words, time, spoken=spoken)
    return replace(part, segments=segments, words=words)


def _ordered(several: Sequence[Timed], time: float, *, spoken: bool) -> tuple[Timed, ...]:
    starts: list[float] = [max(one.start, time) for one in several]
    following = [*starts[1:], inf] if spoken else [inf] * len(starts)
    return tuple(
        replace(one, start=start, end=max(start, min(one.end, after)))
        for one, start, after in zip(several, starts, following, strict=False)
    )


def first_segments(part: Transcript, count: int) -> Transcript:
    """Return the first `count` segments of a transcript with their words."""
    if count == len(part.segments):
        return part
    segments, end = part.segments[:count], part.segments[count - 1].end
    after = part.segments[count].start
    return replace(
        part,
        text=part.joint.join(segment.text for segment in segments),
        segments=segments,
        words=tuple(word for word in part.words if word.start < end or word.end <= end < after),
    )


def completed(first: Transcript, more: Transcript) -> Transcript:
    """Insert words that were found later into a window's transcript, in order of their times."""
    if not more.text:
        return replace(joined([first, replace(more, duration=0.0)]), text=first.text)
    begin = more.segments[0].start
    # The segment before may have been thought to reach over the speech that it left out.
    known = (
        replace(segment, end=max(segment.start, begin)) if segment.start <= begin < segment.end else segment
        for segment in first.segments
    )
    segments = tuple(sorted((*known, *more.segments), key=lambda segment: segment.start))
    words = tuple(sorted((*first.words, *more.words), key=lambda word: word.start))
    both = joined([first, replace(more, duration=0.0)])
    text = both.joint.join(segment.text for segment in segments)
    return replace(both, text=text, segments=segments, words=words)


def is_known(more: Transcript, best: Transcript) -> bool:
    """Tell whether words that were transcribed again were found before: their times were wrong, not their
    text.
    """
    plain = [re.sub(r"\W+", " ", one.text).casefold().strip() for one in (more, best)]
    return bool(plain[0]) and f" {plain[0]} " in f" {plain[1]} "
