"""Split segments that span a pause, and fit all of them to their audio: a model may write the end of one
utterance and the start of the next between two timestamps, which then fit neither.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

from .model import Arrays
from .quiet import FRAME, runs
from .sounds import Flags, Sounds, frames, silence_in, snapped
from .tuning import TUNING
from .vad import RATE, Span
from .windows import ENDED, Window

# Punctuation that belongs to the next word; a dash does where it begins a speaker's turn.
OPENS = re.compile(r"(?:(?<=\s)[-–—«]\s+)?[\"'“‘¿¡(\[{«《「『（【]*$")
Place = tuple[int, int]  # where a word begins and ends in a text
TIME = re.compile(rb"<\|\d+\.\d\d\|>")


@dataclass(frozen=True)
class SpeechPiece:
    """A segment from the façade: its times in seconds of the window, and its tokens, including timestamps,
    with their log probabilities and spellings where known.
    """

    span: Span
    text: str
    tokens: tuple[int, ...]
    log_probs: tuple[float, ...]
    spelled: tuple[bytes, ...] = ()


@dataclass(frozen=True)
class TimedWord:
    """A word and its times in seconds of the window."""

    text: str
    span: Span


Part = tuple[SpeechPiece, Sequence[TimedWord]]


@dataclass(frozen=True)
class Pause:
    """Where speech ends (`before`) and starts again (`after`), in seconds of the window; and where the first
    part of a segment that is cut there ends (`end`) and the second starts (`begin`).
    """

    before: float
    after: float
    end: float
    begin: float

    def precedes(self, word: Span) -> bool:
        """Tell whether a word belongs to the speech after the pause. Alignment may have added the pause, or
        part of it, to the word.
        """
        begin, end = word
        earlier, later = min(end, self.before) - begin, end - max(begin, self.after)
        if max(earlier, later) <= 0:
            return begin + end > self.before + self.after
        return later > max(earlier, 0)

    def has(self, word: Span) -> bool:
        """Tell whether a word starts well inside it: then voice activity detection missed speech there."""
        return self.before + 2 * TUNING.voice_margin < word[0] < self.after - 2 * TUNING.voice_margin


def pieces_of(result: Arrays) -> Iterator[SpeechPiece]:
    """Return the segments of the façade's answer."""
    spans = [(float(begin), float(end)) for begin, end in result["SEGMENT_TIMES"].reshape(-1, 2)]
    texts, sizes = result["SEGMENT_TEXTS"].ravel(), result["SEGMENT_SIZES"].ravel()
    tokens, log_probs, at = result["TOKENS"].ravel().tolist(), result["TOKEN_LOGPROBS"].ravel().tolist(), 0
    spelled = result["TOKEN_BYTES"].ravel().tolist() if "TOKEN_BYTES" in result else []
    for span, text, size in zip(spans, texts, sizes.tolist(), strict=True):
        own, at = slice(at, at + size), at + size
        yield SpeechPiece(span, text.decode(), tuple(tokens[own]), tuple(log_probs[own]), tuple(spelled[own]))


def words_of(result: Arrays) -> list[TimedWord] | None:
    """Return the words of the façade's answer; None where their times were not requested."""
    if "WORD_TIMES" not in result:
        return None
    times = result["WORD_TIMES"].reshape(-1, 2).tolist()
    return [
        TimedWord(text.decode(), (begin, end))
        for text, (begin, end) in zip(result["WORD_TEXTS"].ravel(), times, strict=True)
    ]


def cut(
    pieces: Sequence[SpeechPiece],
    words: Sequence[TimedWord],
    window: Window,
    sounds: Sounds,
    *,
    in_order: bool = True,
) -> tuple[list[SpeechPiece], list[TimedWord]]:
    """Split the pieces at the window's pauses and at silences after sentences, and give each the times of its
    audio; the words then lie inside their parts. `words` are those of all pieces, in order. Without words, or
    without the tokens' spellings, nothing is split. `in_order`: words are in spoken order (those of a
    translation are not) and show where their piece is.
    """
    pauses, left, parts = list(_pauses(window)), list(words), list[Part]()
    opens = True
    for piece in pieces:
        count = len(_places(piece.text, left)) if piece.spelled else 0
        own, left = left[:count], left[count:]
        if in_order and own and opens and own[0].span[0] <= TUNING.segment_edge:
            own = _begun(own, sounds)
        opens = opens and not own
        placed = _timed_by_words(piece, own, sounds.voice) if in_order else piece
        for part in _at_pauses(placed, own, pauses):
            parts += _at_sentences(*part, sounds)
    parts = list(_bounded(parts, sounds))
    return [piece for piece, _ in parts], [word for _, own in parts for word in own] + left


def _begun(words: list[TimedWord], sounds: Sounds) -> list[TimedWord]:
    """Return a window's first words, the first without a silence that it spans: alignment starts it at the
    window's start, but it was spoken after the silence.
    """
    word, others = words[0], words[1:]
    first, end = frames(word.span)
    end = min(end, len(sounds.voice))
    found = runs(sounds.voice[first:end]) + first
    over = len(found) > 1 and found[-1][1] == end and found[-1][0] - found[-2][1] >= TUNING.hole_frames
    if over and (found[:-1, 1] - found[:-1, 0]).sum() <= TUNING.overlap_frames:
        return [TimedWord(word.text, (int(found[-1][0]) * FRAME / RATE, word.span[1])), *others]
    return words


def _timed_by_words(piece: SpeechPiece, words: Sequence[TimedWord], voice: Flags) -> SpeechPiece:
    """Return a piece with the times of its words where the model's timestamps disagree with them or exclude
    one: in noise a model may write evenly spaced timestamps, seconds away from the audio.
    """
    if not words:
        return piece
    first, last = words[0].span, words[-1].span

    def nearer(time: float, own: float) -> float:
        voiced = voice[slice(*frames((min(time, own), max(time, own))))].sum() * FRAME / RATE
        return own if voiced > TUNING.stray_voice else time

    begin = first[0] if first[1] <= piece.span[0] else nearer(piece.span[0], first[0])
    end = last[1] if piece.span[1] <= last[0] else nearer(piece.span[1], last[1])
    return replace(piece, span=(begin, end) if begin < end else (first[0], last[1]))


def _at_pauses(piece: SpeechPiece, words: Sequence[TimedWord], pauses: Sequence[Pause]) -> Iterator[Part]:
    places = _places(piece.text, words)
    for number, pause in enumerate(pauses, 1):
        count = next((i for i, word in enumerate(words) if pause.precedes(word.span)), 0)
        whole = piece.span[0] < pause.before and pause.after < piece.span[1]
        if 0 < count < len(places) and whole and not any(pause.has(word.span) for word in words):
            around = (places[count - 1], places[count])
            done, more = _divided(piece, around, (pause.end, pause.begin))
            yield done, [_within(word, done.span) for word in words[:count]]
            later = [_within(word, more.span) for word in words[count:]]
            yield from _at_pauses(more, later, pauses[number:])
            return
    yield piece, words


def _at_sentences(piece: SpeechPiece, words: Sequence[TimedWord], sounds: Sounds) -> Iterator[Part]:
    places = _places(piece.text, words)
    for i, (here, following) in enumerate(pairwise(places), 1):
        if ENDED.search(OPENS.sub("", piece.text[here[0] : following[0]])):
            found = _silence_between(words[i - 1].span, words[i].span, sounds)
            if found and found[1] - found[0] >= TUNING.sentence_silence:
                done, more = _divided(piece, (here, following), found)
                yield done, words[:i]
                yield from _at_sentences(more, words[i:], sounds)
                return
    yield piece, words


def _silence_between(before: Span, after: Span, sounds: Sounds) -> Span | None:
    """Return the silence between two words; alignment may have added it, or part of it, to either."""
    at = after[0] if after[0] < after[1] else before[1]
    return silence_in((sounds.begin(before), sounds.end(after)), sounds.voice, at)


def _bounded(parts: Sequence[Part], sounds: Sounds) -> Iterator[Part]:
    """Fit parts to the silence between the last word of one and the first word of the next. A model's
    timestamps are often some tenths of a second off.
    """
    begins = (parts[0][0].span[0],) * 2 if parts else None
    ends = (parts[-1][0].span[1],) * 2 if parts else None
    lasts = [begins, *(words[-1].span if words else None for _, words in parts)]
    firsts = [*(words[0].span if words else None for _, words in parts), ends]
    silences = [
        _silence_between(last, first, sounds) if last and first else None
        for last, first in zip(lasts, firsts, strict=True)
    ]
    at = 0.0
    for (piece, words), (before, after) in zip(parts, pairwise(silences), strict=True):
        begin, end = snapped(piece.span, sounds.voice)
        if before and before[1] - TUNING.segment_edge > piece.span[0] - TUNING.lost_speech:
            begin = before[1] - TUNING.segment_edge
        if after and after[0] + TUNING.segment_edge < piece.span[1] + TUNING.lost_speech:
            end = after[0] + TUNING.segment_edge
        span = max(at, begin), max(at, begin, end)
        at = span[1]
        yield replace(piece, span=span), _moved(words, piece.span, span)


def _moved(words: Sequence[TimedWord], old: Span, new: Span) -> list[TimedWord]:
    """Return the words of a part with new times: the outermost move with an edge that they touch."""
    spans = [word.span for word in words]
    first = min(range(len(spans)), key=lambda i: spans[i][0], default=0)
    last = max(range(len(spans)), key=lambda i: (spans[i][1], i), default=0)
    moved = list[TimedWord]()
    for i, word in enumerate(words):
        begin, end = word.span
        to_begin = i == first and begin <= old[0] + TUNING.segment_edge
        to_end = i == last and end >= old[1] - TUNING.segment_edge
        begin = new[0] if to_begin else min(max(begin, new[0]), new[1])
        moved.append(TimedWord(word.text, (begin, new[1] if to_end else min(max(end, begin), new[1]))))
    return moved


def _pauses(window: Window) -> Iterator[Pause]:
    for (_, before), (after, _) in pairwise(window.speech):
        if window.time(after) - window.time(before, end=True) >= TUNING.cut_silence:
            margin = min(TUNING.voice_margin, (after - before) / 2)
            inside = [place for place, _ in window.gaps if before <= place <= after]
            end, begin = min([before + margin, *inside]), max([after - margin, *inside])
            yield Pause(before, after, end, begin)


def _places(text: str, words: Sequence[TimedWord]) -> list[Place]:
    """Return the positions of the words in a text, up to the first that is missing."""
    places, at = list[Place](), 0
    for word in words:
        found = text.find(word.text, at)
        if found < 0:
            break
        at = found + len(word.text)
        places.append((found, at))
    return places


def _within(word: TimedWord, span: Span) -> TimedWord:
    begin, end = (min(max(time, span[0]), span[1]) for time in word.span)
    return TimedWord(word.text, (begin, end))


def _divided(piece: SpeechPiece, around: tuple[Place, Place], times: Span) -> tuple[SpeechPiece, SpeechPiece]:
    """Split a piece in two. `around`: positions of the words on either side; `times`: the end of one part and
    the start of the other.
    """
    (_, done), (start, _) = around
    found = OPENS.search(piece.text[done:start])
    at = done + found.start() if found else start
    spoken = [b"" if TIME.fullmatch(part) else part for part in piece.spelled]
    whole = b"".join(spoken).decode(errors="replace")
    first = max(0, whole.rfind(piece.text)) + at
    count = sum(len(part.decode(errors="replace")) <= first for part in accumulate(spoken))
    halves = (slice(count), slice(count, None))
    spans = ((piece.span[0], times[0]), (times[1], piece.span[1]))
    texts = (piece.text[:at].strip(), piece.text[at:].strip())
    earlier, later = (
        SpeechPiece(span, text, piece.tokens[half], piece.log_probs[half], piece.spelled[half])
        for span, text, half in zip(spans, texts, halves, strict=True)
    )
    return earlier, later
