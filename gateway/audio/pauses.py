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
OPENERS = "\"'“‘¿¡([{«《「"  # punctuation that belongs to the word behind it
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


def cut(pieces: Sequence[Piece], words: Sequence[Said], window: Window) -> Iterator[Piece]:
    """The pieces, those in several parts that go on over pauses of the window. `words`: of all of them, in
    order; without words, and where it is not known what tokens spell, nothing is cut.
    """
    pauses, left = list(_pauses(window)), list(words)
    for piece in pieces:
        count = len(list(_places(piece.text, left)))
        yield from _parts(piece, left[:count], pauses) if piece.spelled else [piece]
        left = left[count:]


def _parts(piece: Piece, words: Sequence[Said], pauses: Sequence[Span]) -> Iterator[Piece]:
    places = list(_places(piece.text, words))
    for number, (before, after) in enumerate(pauses, 1):
        behind = next((i for i, word in enumerate(words) if _is_behind(word.span, before, after)), 0)
        if 0 < behind < len(places) and piece.span[0] < before and after < piece.span[1]:
            margin = min(MARGIN, (after - before) / 2)
            around = (places[behind - 1], places[behind])
            done, rest = _divided(piece, around, before + margin, after - margin)
            yield done
            yield from _parts(rest, words[behind:], pauses[number:])
            return
    yield piece


def _pauses(window: Window) -> Iterator[Span]:
    """Where a voice ends and the next begins, in seconds of the window; what was left out of it counts."""
    for (_, end), (begin, _) in pairwise(window.speech):
        if window.time(begin) - window.time(end, end=True) >= PAUSE:
            yield end, begin


def _places(text: str, words: Sequence[Said]) -> Iterator[Place]:
    """Where the words of a text stand in it, up to the first that is not there."""
    at = 0
    for word in words:
        found = text.find(word.text, at)
        if found < 0:
            return
        at = found + len(word.text)
        yield found, at


def _is_behind(word: Span, before: float, after: float) -> bool:
    """Whether a word belongs to the voice behind a pause. Alignment may give it the pause, or a part of
    it.
    """
    begin, end = word
    earlier, later = min(end, before) - begin, end - max(begin, after)
    if max(earlier, later) <= 0:
        return begin + end > before + after
    return later > max(earlier, 0)


def _divided(piece: Piece, around: tuple[Place, Place], end: float, begin: float) -> tuple[Piece, Piece]:
    """A piece in two, which end and begin at those times; `around`: places of the words on either side."""
    (_, done), (start, _) = around
    at = done + len(piece.text[done:start].rstrip(OPENERS))
    spoken = [b"" if TIME.fullmatch(part) else part for part in piece.spelled]
    blank = len(b"".join(spoken)) - len(b"".join(spoken).lstrip())
    first_byte = blank + len(piece.text[:at].encode())
    count = sum(reached <= first_byte for reached in accumulate(map(len, spoken)))
    halves = (slice(count), slice(count, None))
    spans = ((piece.span[0], end), (begin, piece.span[1]))
    texts = (piece.text[:at].strip(), piece.text[at:].strip())
    first, second = (
        Piece(span, text, piece.tokens[half], piece.log_probs[half], piece.spelled[half])
        for span, text, half in zip(spans, texts, halves, strict=True)
    )
    return first, second
