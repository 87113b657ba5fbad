"""Split a text into passages, which the embedding model reads one by one, and chunks of passages, which
searches return.

An encoder such as MiniLM reads 256 tokens, while OpenAI's chunks have 800: two thirds of a chunk that is
embedded whole would be ignored. So a chunk is a sequence of passages that the model reads whole, and is found
by its best one. Overlapping chunks share their passages, so overlap costs no second embedding. A passage's
token count comes from the model that read it, so no tokenizer is needed here: packing estimates, and what
turns out to be too long is halved.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import ceil

WORD = re.compile(r"\w+|[^\w\s]")
BREAK = re.compile(r"\n\s*\n|(?<=[.!?。！？])\s+|\n")
LONGEST_PIECE = 40  # characters of a run without a break that a passage must not cut without need
SPECIALS = 2  # tokens around each passage


@dataclass(frozen=True)
class ChunkingStrategy:
    """OpenAI's static chunking, in the model's own tokens."""

    max_tokens: int = 800
    overlap: int = 400

    def passage(self, positions: int) -> int:
        """Return the tokens that a passage should have: as many as fit, in equal parts of a chunk."""
        return self.max_tokens // ceil(self.max_tokens / positions)


@dataclass(frozen=True)
class Span:
    """Characters from start to end of a text."""

    start: int
    end: int

    def of(self, text: str) -> str:
        """Return these characters."""
        return text[self.start : self.end]


def guess(text: str) -> int:
    """Estimate a text's word pieces: one for five ASCII letters, two letters of other alphabets, one
    character of scripts without spaces.
    """
    total = 0
    for found in WORD.finditer(text):
        word = found[0]
        if word.isascii():
            total += ceil(len(word) / 5)
        else:
            total += len(word) if word[0] >= "\u2e80" else ceil(len(word) / 2)
    return total


def _sentences(text: str) -> Iterator[Span]:
    start = 0
    for found in BREAK.finditer(text):
        yield Span(start, found.end())
        start = found.end()
    if start < len(text):
        yield Span(start, len(text))


def _words(text: str, span: Span) -> Iterator[Span]:
    """Split a sentence: words with what precedes them, long ones in pieces."""
    start = span.start
    for found in re.finditer(r"\s*\S+\s*", span.of(text)):
        end = span.start + found.end()
        while end - start > LONGEST_PIECE:
            yield Span(start, start + LONGEST_PIECE)
            start += LONGEST_PIECE
        yield Span(start, end)
        start = end


def passages(text: str, tokens: int) -> list[Span]:
    """Split a text into passages of about `tokens` tokens, including special ones, that end where sentences
    do, if possible; only whitespace is left out.
    """
    room = max(1, tokens - SPECIALS)
    packed: list[Span] = []
    start = end = size = 0

    def close() -> None:
        nonlocal start, size
        if text[start:end].strip():
            packed.append(Span(start, end))
        start, size = end, 0

    for sentence in _sentences(text):
        whole = guess(sentence.of(text))
        if size and size + whole > room:
            close()
        parts = [sentence] if whole <= room else _words(text, sentence)
        for part in parts:
            count = guess(part.of(text))
            if size and size + count > room:
                close()
            end, size = part.end, size + count
    close()
    return packed


def halves(span: Span, text: str) -> list[Span]:
    """Split a passage in two, between words where there is a boundary near its middle."""
    middle = (span.start + span.end) // 2
    space = text.find(" ", middle, span.end - 1)
    cut = space + 1 if space > 0 else middle
    return [Span(span.start, cut), Span(cut, span.end)]


def chunks(counts: Sequence[int], strategy: ChunkingStrategy) -> list[tuple[int, int]]:
    """Return first and last (exclusive) passage of each chunk: as many as `max_tokens` allows; the next chunk
    starts with as many of the last ones as `overlap` allows.
    """
    made: list[tuple[int, int]] = []
    first = 0
    while first < len(counts):
        last = first + 1
        while last < len(counts) and sum(counts[first : last + 1]) <= strategy.max_tokens:
            last += 1
        made.append((first, last))
        if last == len(counts):
            break
        following = last
        room = min(
            strategy.overlap, strategy.max_tokens - counts[last]
        )  # the next one has something new, too
        while following - 1 > first and sum(counts[following - 1 : last]) <= room:
            following -= 1
        first = following
    return made


def homes(parts: Sequence[tuple[int, int]], count: int) -> list[int]:
    """Return, for each of `count` passages, the chunk that is returned for it: the one whose middle is
    nearest.
    """
    best = [(float("inf"), 0)] * count
    for number, (first, last) in enumerate(parts):
        for passage in range(first, last):
            best[passage] = min(best[passage], (abs(passage + 0.5 - (first + last) / 2), number))
    return [number for _, number in best]
