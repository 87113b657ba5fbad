"""Clips: several spoken sentences with pauses, their true segment times, and what a Whisper is to say about
them.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from .corpus import LANGUAGES, Corpus
from .voices import RATE

FRAME = RATE // 100
PAUSE = (0.9, 3.0)  # seconds; the gateway shortens longer silence to one


@dataclass(frozen=True)
class ClipSegment:
    """One sentence inside a clip; `start` and `end` in seconds from the clip's beginning."""

    text: str
    translation: str
    start: float
    end: float


@dataclass(frozen=True)
class SpeechClip:
    """A language, a length in samples, and (utterance, first sample) pairs. `cut`: the last segment runs over
    the end. `written`: how many segments the text with times has, if it ends at a pause although others
    follow, as a real Whisper's often does.
    """

    language: str
    samples: int
    pieces: list[tuple[int, int]] = field(default_factory=list)
    segments: list[ClipSegment] = field(default_factory=list)
    cut: bool = False
    written: int | None = None

    def text(self, task: str = "transcribe") -> str:
        """The reference text; for the task translate in English."""
        plain = task == "transcribe"
        return " ".join(segment.text if plain else segment.translation for segment in self.segments)


class Clipper:
    """Draws clips from a corpus."""

    def __init__(self, corpus: Corpus, rng: random.Random) -> None:
        self.corpus = corpus
        self.rng = rng
        self.utterances = {
            language: [i for i, spoken in enumerate(corpus.languages) if spoken == language]
            for language in LANGUAGES
        }

    def _segment(self, utterance: int, start: int) -> ClipSegment:
        sentence, language = self.corpus.sentences[utterance], self.corpus.languages[utterance]
        length = int(self.corpus.starts[utterance + 1] - self.corpus.starts[utterance])
        return ClipSegment(getattr(sentence, language), sentence.en, start / RATE, (start + length) / RATE)

    def speech(
        self,
        room: int,
        *,
        language: str | None = None,
        cut: bool = False,
        fill: float = 1.0,
        ends_early: bool = False,
    ) -> SpeechClip:
        """Sentences of one language until `fill` of `room` samples is used; with `cut`, the last one passes
        the end. With `ends_early` and room for it, the text ends at a pause of PAUSE seconds after some
        sentence.
        """
        rng = self.rng
        clip = SpeechClip(language or rng.choice(LANGUAGES), room, cut=cut)
        at = int(RATE * min(rng.expovariate(2.0), 3.0, max(room / RATE - 1.5, 0.02)))
        tries, written = 0, None
        while tries < 8:
            utterance = rng.choice(self.utterances[clip.language])
            segment = self._segment(utterance, at)
            over = segment.end * RATE > room
            if over and not (cut and (room - at) > 0.3 * RATE):
                tries += 1
                continue
            clip.pieces.append((utterance, at))
            clip.segments.append(segment)
            at = int(segment.end * RATE + RATE * rng.choice([rng.uniform(0.1, 0.4), rng.uniform(0.3, 1.2)]))
            if over or at > fill * room:
                break
            if ends_early and written is None and rng.random() < 0.5:
                at = int((segment.end + rng.uniform(*PAUSE)) * RATE)
                written = len(clip.segments)
        if written is not None and written < len(clip.segments):
            return replace(clip, cut=False, written=written)
        return replace(clip, cut=cut and bool(clip.segments) and clip.segments[-1].end * RATE > room)

    def silent(self, room: int) -> SpeechClip:
        """A clip without speech."""
        return SpeechClip(self.rng.choice(LANGUAGES), room)

    def wave(self, clip: SpeechClip) -> NDArray[np.float32]:
        """The clean sound of a clip, float32 of `clip.samples`."""
        out = np.zeros(clip.samples, np.float32)
        for utterance, start in clip.pieces:
            spoken = self.corpus.wave(utterance)[: clip.samples - start]
            out[start : start + len(spoken)] += spoken
        return out


class Dictation:
    """Token sequences for clips, as Whisper was trained: context, start, language, task, then text with or
    without times.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.encode = cache(lambda text: tokenizer.encode(text, add_special_tokens=False).ids)
        self.special = cache(lambda name: tokenizer.token_to_id(f"<|{name}|>"))

    def time(self, seconds: float) -> int:
        """The id of the timestamp nearest to `seconds`."""
        return self.special("0.00") + min(round(seconds / 0.02), 1500)

    def spoken(self, clip: SpeechClip, task: str, *, timestamps: bool) -> Iterator[int]:
        """The ids of a clip's sentences, with the times at which they start and end or without."""
        for segment in clip.segments[: clip.written if timestamps else None]:
            last_is_cut = clip.cut and segment is clip.segments[-1]
            if timestamps:
                yield self.time(segment.start)
            if last_is_cut:
                break
            yield from self.encode(" " + (segment.text if task == "transcribe" else segment.translation))
            if timestamps:
                yield self.time(segment.end)

    def target(
        self, clip: SpeechClip, task: str, context: Sequence[int], style: str
    ) -> tuple[list[int], int]:
        """All ids of a training sequence and how many of them at the front carry no loss.

        `context`: ids of the text before the clip, of which the last 223 are used, as Whisper does.
        `style`: "timestamps", "plain", or "nospeech" (a silent clip answered at once by <|nospeech|>).
        """
        s = self.special
        prefix = [s("startofprev"), *context[-223:]] if context else []
        prefix += [s("startoftranscript")]
        if style == "nospeech":
            return [*prefix, s("nospeech"), s("endoftext")], len(prefix)
        head = [s(clip.language), s(task)]
        if style == "plain":
            body = [s("notimestamps"), *self.spoken(clip, task, timestamps=False)]
        else:
            body = list(self.spoken(clip, task, timestamps=True)) or [self.time(0.0)]
        return [*prefix, *head, *body, s("endoftext")], len(prefix)
