"""Whisper's vocabulary in a bundle: special ids, prompts, and conversion of token ids to text with
timestamps.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from tokenizers import Tokenizer

from conch.whisper import BLANKLESS, byte_alphabet

from ..errors import BadRequest

SECONDS_PER_TIMESTAMP = 0.02
PUNCTUATION = "\"'“”‘’¿¡([{-–—.。,，!！?？:：;；)]}、…«»《》「」『』（）【】"
_TIMESTAMP = re.compile(r"(<\|\d{1,2}\.\d\d\|>)")
_LANGUAGE = re.compile(r"<\|([a-z]{2,3})\|>")


@dataclass(frozen=True)
class Prompt:
    """Decoder start ids and their language (None: to be detected and inserted at `language_at`)."""

    ids: tuple[int, ...]
    language: str | None
    language_at: int

    def in_language(self, language: str, token: int) -> Prompt:
        """Return the prompt with a detected language inserted."""
        return Prompt(
            (*self.ids[: self.language_at], token, *self.ids[self.language_at :]), language, self.language_at
        )


@dataclass(frozen=True)
class TokenSegment:
    """A segment of speech: times in seconds from the start of the window, `tokens` including their
    timestamps.
    """

    start: float
    end: float
    text: str
    tokens: tuple[int, ...]


@dataclass(frozen=True)
class TokenWord:
    """A word without surrounding punctuation, and its tokens in the text: from `first` up to, not including,
    `end`.
    """

    text: str
    first: int
    end: int


class WhisperVocabulary:
    """Ids and texts of one model, all read from its tokenizer.json; nothing is assumed from its name."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.end = self._id("<|endoftext|>")
        self.start = self._id("<|startoftranscript|>")
        self.no_timestamps = self._id("<|notimestamps|>")
        self.first_timestamp = self.no_timestamps + 1
        # Older exports call it <|nocaptions|> (openai/whisper before 2022-12).
        self.no_speech = next(
            i for name in ("<|nospeech|>", "<|nocaptions|>") if (i := tokenizer.token_to_id(name)) is not None
        )

    @classmethod
    def load(cls, folder: Path) -> WhisperVocabulary:
        """Read `folder`/tokenizer.json."""
        return cls(Tokenizer.from_file(str(folder / "tokenizer.json")))

    def _id(self, token: str) -> int:
        found = self.tokenizer.token_to_id(token)
        if found is None:
            raise BadRequest(f"{token} is not in this model's vocabulary")
        return found

    @cached_property
    def multilingual(self) -> bool:
        """Tell whether the model is multilingual. `.en` models have gpt2's vocabulary, one token shorter than
        the multilingual one.
        """
        return self.end >= 50257

    @cached_property
    def languages(self) -> dict[str, int]:
        """Map each language code to its token id: the ids between the start token and the tasks."""
        if not self.multilingual:
            return {}
        between = range(self.start + 1, self._id("<|translate|>"))
        return {
            match[1]: i
            for i in between
            if (match := _LANGUAGE.fullmatch(self.tokenizer.id_to_token(i) or ""))
        }

    def written(self, prompt: Prompt) -> str | None:
        """Return the language of a prompt's transcript: that of the audio, or English for a translation."""
        asked = prompt.ids[prompt.ids.index(self.start) :]
        return "en" if self.tokenizer.token_to_id("<|translate|>") in asked else prompt.language

    def default_prompt(self) -> str:
        """Return the prompt for an empty TEXT_PREFIX: English without timestamps (upstream's default); for
        `.en` models, neither language nor task.
        """
        return (
            "<|startoftranscript|>"
            + ("<|en|><|transcribe|>" if self.multilingual else "")
            + "<|notimestamps|>"
        )

    def prompt(self, prefix: str, positions: int) -> Prompt:
        """Parse TEXT_PREFIX, such as `<|startoftranscript|><|en|><|transcribe|><|notimestamps|>`.

        A prompt with a task but no language requests detection. Text before the start token, after
        <|startofprev|>, is context, of which the last `positions` / 2 - 1 tokens are kept (openai/whisper
        decoding.py, `_get_initial_tokens`).

        Raises:
            BadRequest: an unknown special token, or no start token.
        """
        text = prefix or self.default_prompt()
        ids = tuple(self._encoded(text))
        if self.start not in ids:
            raise BadRequest(
                "TEXT_PREFIX has no <|startoftranscript|>; leave it empty or send for example "
                + self.default_prompt()
            )
        ids = self._shortened(self._spoken_by_this_model(ids), positions // 2 - 1)
        at = ids.index(self.start) + 1
        codes = {i: code for code, i in self.languages.items()}
        named = codes.get(ids[at]) if at < len(ids) else None
        return Prompt(ids, named or (None if self.multilingual else "en"), at)

    def _encoded(self, text: str) -> Iterator[int]:
        """Encode text with special tokens. Timestamps are computed, since not every tokenizer.json lists
        them.
        """
        for part in _TIMESTAMP.split(text):
            if _TIMESTAMP.fullmatch(part):
                yield self.first_timestamp + min(round(float(part[2:-2]) / SECONDS_PER_TIMESTAMP), 1500)
                continue
            for special in re.findall(r"<\|[^|]*\|>", part):
                self._id(special)
            yield from self.tokenizer.encode(part, add_special_tokens=False).ids

    def _spoken_by_this_model(self, ids: tuple[int, ...]) -> tuple[int, ...]:
        """Check language and task. `.en` models were trained without either: they transcribe English and do
        nothing else.
        """
        if self.multilingual:
            return ids
        between = range(self.start + 1, self.no_timestamps)
        mute = {self._id("<|en|>"), self._id("<|transcribe|>")}
        for token in ids[ids.index(self.start) :]:
            if token in between and token not in mute:
                raise BadRequest(
                    f"TEXT_PREFIX has {self.tokenizer.id_to_token(token)}; this model transcribes English "
                    "only"
                )
        return tuple(token for token in ids if token not in mute)

    def _shortened(self, ids: tuple[int, ...], room: int) -> tuple[int, ...]:
        start = ids.index(self.start)
        return ids if start <= room + 1 else (ids[0], *ids[start - room :])

    def text(self, tokens: Sequence[int]) -> str:
        """Decode words only: without special tokens and timestamps, stripped."""
        return self.tokenizer.decode([t for t in tokens if t < self.end], skip_special_tokens=True).strip()

    @cached_property
    def _bytes(self) -> dict[str, int]:
        """Return bytes from their printable stand-ins."""
        return {character: byte for byte, character in byte_alphabet().items()}

    def token_bytes(self, token: int) -> bytes:
        """Return a token's bytes, which may be part of a character. Special tokens return their name."""
        spelled = self.tokenizer.id_to_token(token) or ""
        return (
            spelled.encode() if token >= self.end else bytes(self._bytes[character] for character in spelled)
        )

    def words(self, tokens: Sequence[int], language: str | None) -> list[TokenWord]:
        """Split text tokens (without timestamps) into words in order, without surrounding punctuation, which
        takes time of its own.
        """
        words: list[list[tuple[str, int, int]]] = []
        for part in self._characters(tokens):
            if words and not part[0].startswith(" ") and language not in BLANKLESS:
                words[-1].append(part)
            else:
                words.append([part])
        return [word for parts in words if (word := _bare(parts)).text]

    def _characters(self, tokens: Sequence[int]) -> Iterator[tuple[str, int, int]]:
        """Group tokens that spell whole characters; bytes that can never be one become the replacement
        character.
        """
        raw, first = b"", 0
        for i, token in enumerate(tokens):
            raw += self.token_bytes(token)
            try:
                text = raw.decode()
            except UnicodeDecodeError as error:
                if error.reason == "unexpected end of data" and i + 1 < len(tokens):
                    continue
                text = raw.decode(errors="replace")
            yield text, first, i + 1
            raw, first = b"", i + 1

    def seconds(self, token: int) -> float:
        """Return the time of a timestamp token in seconds."""
        return round((token - self.first_timestamp) * SECONDS_PER_TIMESTAMP, 2)

    def segments(self, tokens: Sequence[int], duration: float) -> list[TokenSegment]:
        """Split generated tokens at their timestamps.

        Not every target applies timestamp rules, so disorder is repaired here: times never run backwards or
        past `duration`; a missing start is the previous end; a missing end is the next start or `duration`.
        """
        segments: list[TokenSegment] = []
        start, words, run = 0.0, [], []  # type: ignore[var-annotated]
        for token in [*tokens, None]:
            if token is None or token >= self.first_timestamp:
                at = duration if token is None else min(max(self.seconds(token), start), duration)
                text = self.text(words)
                if text:
                    segments.append(
                        TokenSegment(start, at, text, (*run, *([] if token is None else [token])))
                    )
                # Every token belongs to one segment: a timestamp that closed one does not open the next as
                # well.
                run = [] if text else [*run, *([] if token is None else [token])]
                words, start = [], at
            elif token != self.end:
                words.append(token)
                run.append(token)
        return segments


def _bare(parts: Sequence[tuple[str, int, int]]) -> TokenWord:
    """Return a word's parts without those at its ends that are punctuation only."""
    spoken = [i for i, (text, *_) in enumerate(parts) if text.strip().strip(PUNCTUATION)]
    if not spoken:
        return TokenWord("", 0, 0)
    kept = parts[spoken[0] : spoken[-1] + 1]
    return TokenWord("".join(text for text, *_ in kept).strip().strip(PUNCTUATION), kept[0][1], kept[-1][2])
