"""Name the speakers, and assign words to them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import count, groupby, product
from string import ascii_uppercase

from ..transcript import Segment, Transcript, Word
from ..windows import ENDED
from .model import Floats
from .tuning import TUNING
from .turns import Diarization

REACH = 24  # characters of a segment's text that may stand between two of its words
Begins = list[tuple[int, int]]  # where in a segment's text a word begins, and the word's number


def letters() -> Iterator[str]:
    """Yield A, B, …, Z, AA, AB, …"""
    for size in count(1):
        yield from map("".join, product(ascii_uppercase, repeat=size))


def labels(voices: Floats, names: Sequence[str], references: Floats) -> tuple[str, ...]:
    """Name each speaker: a known name where their voice is near enough, also under this recording's
    conditions, whose nearest pair sets how near the others must be; otherwise letters in order of first
    appearance. `voices` [speakers, dimensions] and `references` [names, dimensions] have length 1.
    """
    known: dict[int, str] = {}
    if len(voices) and len(names):
        near = voices @ references.T
        least = max(TUNING.known_voice, float(near.max()) - TUNING.known_drop)
        if len(names) == len(voices):  # nobody else is expected
            least = TUNING.known_all
        while near.max() >= least:  # the nearest pair first; each speaker and each name once
            speaker, name = divmod(int(near.argmax()), len(names))
            known[speaker] = names[name]
            near[speaker], near[:, name] = -1.0, -1.0
    free = (letter for letter in letters() if letter not in names)
    return tuple(known.get(speaker) or next(free) for speaker in range(len(voices)))


def labelled(transcript: Transcript, diarization: Diarization, names: Sequence[str]) -> Transcript:
    """Return a transcript with the speaker of each word and segment; segments are split where the speaker
    changes. Words without any turns have one speaker.
    """
    names = names or [next(letters())]
    words = [_word(word, diarization, names) for word in transcript.words]
    segments: list[Segment] = []
    first = 0
    for segment in transcript.segments:
        begins, first = _words_of(segment, words, first)
        if begins:
            _settle(segment.text, begins, words)
            segments += _parts(segment, begins, words)
        else:
            segments.append(_whole(segment, diarization, names))
    return replace(transcript, words=tuple(words), segments=tuple(segments))


def _word(word: Word, diarization: Diarization, names: Sequence[str]) -> Word:
    times = word.start, word.end
    return replace(word, speaker=names[diarization.speaker_of(*times)], overlap=diarization.overlaps(*times))


def _whole(segment: Segment, diarization: Diarization, names: Sequence[str]) -> Segment:
    return replace(segment, speaker=names[diarization.speaker_of(segment.start, segment.end)])


def _words_of(segment: Segment, words: list[Word], first: int) -> tuple[Begins, int]:
    """Return a segment's words from number `first` on, and the number of the next segment's first."""
    found: Begins = []
    at, number = 0, first
    while number < len(words):
        word = words[number].text.strip()
        begin = segment.text.find(word, at, at + len(word) + REACH)
        if begin >= 0:
            found.append((begin, number))
            at = begin + len(word)
        elif words[number].end >= segment.start:  # of the next one; otherwise of another one's text
            break
        number += 1
    return found, number


def _settle(text: str, begins: Begins, words: list[Word]) -> None:
    """Move speaker changes to sentence boundaries: a few words at a sentence's edge, without a pause, get the
    speaker of the rest.
    """
    for sentence in _sentences(text, begins):
        for order in (sentence, sentence[::-1]):
            _, first = next(groupby(order, key=lambda number: words[number].speaker))
            run = list(first)
            rest = order[len(run) :]
            if not rest or len(run) >= len(rest):
                continue
            inner, outer = words[run[-1]], words[rest[0]]
            gap = max(inner.start, outer.start) - min(inner.end, outer.end)
            spoken = max(words[number].end for number in run) - min(words[number].start for number in run)
            if gap < TUNING.joint_words and spoken < TUNING.stray_words:
                for number in run:
                    words[number] = replace(words[number], speaker=outer.speaker)


def _sentences(text: str, begins: Begins) -> Iterator[list[int]]:
    """Yield the numbers of words, by sentence."""
    ends = [*(begin for begin, _ in begins[1:]), len(text)]
    sentence: list[int] = []
    for (begin, number), end in zip(begins, ends, strict=True):
        sentence.append(number)
        if ENDED.search(text[begin:end].rstrip()):
            yield sentence
            sentence = []
    if sentence:
        yield sentence


def _parts(segment: Segment, begins: Begins, words: list[Word]) -> Iterator[Segment]:
    """Split a segment where its speaker changes; only an unsplit segment keeps its tokens."""
    runs = [(speaker, list(run)) for speaker, run in groupby(begins, key=lambda one: words[one[1]].speaker)]
    if len(runs) == 1:
        yield replace(segment, speaker=runs[0][0])
        return
    edges = [0, *(run[0][0] for _, run in runs[1:]), len(segment.text)]
    for number, (speaker, run) in enumerate(runs):
        first, last = words[run[0][1]], words[run[-1][1]]
        yield replace(
            segment,
            start=first.start if number else segment.start,
            end=max(last.end if number < len(runs) - 1 else segment.end, first.start),
            text=segment.text[edges[number] : edges[number + 1]].strip(),
            tokens=(),
            log_probs=(),
            timed="",
            speaker=speaker,
        )
