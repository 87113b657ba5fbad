"""Segments that go on over a pause, cut there: a model may write the end of one utterance and the beginning
of the next between two timestamps, which would then say little of either.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from ..triton import Arrays
from .vad import Span
from .windows import Window

PAUSE = 1.0  # seconds without a voice, from which a segment is cut
MARGIN = 0.2  # seconds next to a voice that may belong to it
# Punctuation that belongs to the word behind it; a dash does where it begins what somebody says.
OPENS = re.compile(r"(?:(?<=\s)[-–—«]\s+)?[\"'“‘¿¡(\[{«《「『（【]*$")
Place = tuple[int, int]  # where a word begins and ends in a text
TIME = re.compile(rb"<\|\d+\.\d\d\|>")


@dataclass(frozen=True)
class Piece:
    """A segment as the façade gives it: its time in seconds of the window, and its tokens with timestamps,
    their log probabilities, and what they spell where that is known.
    """

    span: Span
    text: str
    tokens: tuple[int, ...]
    log_probs: tuple[float, ...]
    spelled: tuple[bytes, ...] = ()


@dataclass(frozen=True)
class Said:
    """A word and its time in seconds of the window."""

    text: str
    span: Span


@dataclass(frozen=True)
class Pause:
    """Where a voice ends and the next one begins, in seconds of the window; and where what is said before it
    ends and what is said after it begins, if a segment is cut there.
    """

    before: float
    after: float
    end: float
    begin: float

    def is_behind(self, word: Span) -> bool:
        """Whether a word belongs to the voice behind the pause. Alignment may give it the pause, or a part of
        it.
        """
        begin, end = word
        earlier, later = min(end, self.before) - begin, end - max(begin, self.after)
        if max(earlier, later) <= 0:
            return begin + end > self.before + self.after
        return later > max(earlier, 0)

    def has(self, word: Span) -> bool:
        """Whether a word begins well inside it: somebody speaks there, whatever voice activity hears."""
        return self.before + 2 * MARGIN < word[0] < self.after - 2 * MARGIN


def pieces_of(result: Arrays) -> Iterator[Piece]:
    """The segments of the façade's answer."""
    spans = [(float(begin), float(end)) for begin, end in result["SEGMENT_TIMES"].reshape(-1, 2)]
    texts, sizes = result["SEGMENT_TEXTS"].ravel(), result["SEGMENT_SIZES"].ravel()
    tokens, log_probs, at = result["TOKENS"].ravel().tolist(), result["TOKEN_LOGPROBS"].ravel().tolist(), 0
    spelled = result["TOKEN_BYTES"].ravel().tolist() if "TOKEN_BYTES" in result else []
    for span, text, size in zip(spans, texts, sizes.tolist(), strict=True):
        own, at = slice(at, at + size), at + size
        yield Piece(span, text.decode(), tuple(tokens[own]), tuple(log_probs[own]), tuple(spelled[own]))


def words_of(result: Arrays) -> list[Said] | None:
    """The words of the façade's answer; None where it was not asked for their times."""
    if "WORD_TIMES" not in result:
        return None
    times = result["WORD_TIMES"].reshape(-1, 2).tolist()
    return [
        Said(text.decode(), (begin, end))
        for text, (begin, end) in zip(result["WORD_TEXTS"].ravel(), times, strict=True)
    ]


def cut(pieces: Sequence[Piece], words: Sequence[Said], window: Window) -> tuple[list[Piece], list[Said]]:
    """The pieces, those in several parts that go on over pauses of the window, and the words, which lie in
    their parts then. `words`: of all pieces, in order; without words, and where it is not known what tokens
    spell, nothing is cut.
    """
    pauses, left = list(_pauses(window)), list(words)
    parts, kept = list[Piece](), list[Said]()
    for piece in pieces:
        count = len(_places(piece.text, left)) if piece.spelled else 0
        own, left = left[:count], left[count:]
        for part, said in _parts(piece, own, pauses):
            parts.append(part)
            kept += said
    return parts, kept + left


def _parts(
    piece: Piece, words: Sequence[Said], pauses: Sequence[Pause]
) -> Iterator[tuple[Piece, Sequence[Said]]]:
    places = _places(piece.text, words)
    for number, pause in enumerate(pauses, 1):
        behind = next((i for i, word in enumerate(words) if pause.is_behind(word.span)), 0)
        whole = piece.span[0] < pause.before and pause.after < piece.span[1]
        if 0 < behind < len(places) and whole and not any(pause.has(word.span) for word in words):
            done, rest = _divided(piece, (places[behind - 1], places[behind]), pause)
            yield done, [_within(word, done.span) for word in words[:behind]]
            later = [_within(word, rest.span) for word in words[behind:]]
            yield from _parts(rest, later, pauses[number:])
            return
    yield piece, words


def _pauses(window: Window) -> Iterator[Pause]:
    for (_, before), (after, _) in pairwise(window.speech):
        if window.time(after) - window.time(before, end=True) >= PAUSE:
            margin = min(MARGIN, (after - before) / 2)
            inside = [place for place, _ in window.gaps if before <= place <= after]
            end, begin = min([before + margin, *inside]), max([after - margin, *inside])
            yield Pause(before, after, end, begin)


def _places(text: str, words: Sequence[Said]) -> list[Place]:
    """Where the words of a text stand in it, up to the first that is not there."""
    places, at = list[Place](), 0
    for word in words:
        found = text.find(word.text, at)
        if found < 0:
            break
        at = found + len(word.text)
        places.append((found, at))
    return places


def _within(word: Said, span: Span) -> Said:
    begin, end = (min(max(time, span[0]), span[1]) for time in word.span)
    return Said(word.text, (begin, end))


def _divided(piece: Piece, around: tuple[Place, Place], pause: Pause) -> tuple[Piece, Piece]:
    """A piece in two; `around`: places of the words on either side."""
    (_, done), (start, _) = around
    found = OPENS.search(piece.text[done:start])
    at = done + found.start() if found else start
    spoken = [b"" if TIME.fullmatch(part) else part for part in piece.spelled]
    whole = b"".join(spoken).decode(errors="replace")
    first = max(0, whole.rfind(piece.text)) + at
    count = sum(len(part.decode(errors="replace")) <= first for part in accumulate(spoken))
    halves = (slice(count), slice(count, None))
    spans = ((piece.span[0], pause.end), (pause.begin, piece.span[1]))
    texts = (piece.text[:at].strip(), piece.text[at:].strip())
    earlier, later = (
        Piece(span, text, piece.tokens[half], piece.log_probs[half], piece.spelled[half])
        for span, text, half in zip(spans, texts, halves, strict=True)
    )
    return earlier, later
