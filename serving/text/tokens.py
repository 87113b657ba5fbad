"""Tokenizer of a text model for its façades: ids, word lists, text, and streamed text."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from functools import cache
from itertools import chain
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from conch.names import BREAK, BYTES
from conch.whisper import byte_alphabet

NO_END = -1
INCOMPLETE = "\ufffd"  # what a decoder writes for bytes that are no character yet
ANCHOR = "x"


class TextTokenizer:
    """Reads everything from tokenizer.json, SentencePiece unigram (T5) and byte-level BPE (BART, GPT-2)
    alike.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.special = {i for i, token in tokenizer.get_added_tokens_decoder().items() if token.special}
        self.unknown = tokenizer.token_to_id(
            str(json.loads(tokenizer.to_str())["model"].get("unk_token") or "<unk>")
        )
        self.piece = cache(self._piece)

    @classmethod
    def load(cls, folder: Path) -> TextTokenizer:
        """Read `folder`/tokenizer.json."""
        return cls(Tokenizer.from_file(str(folder / "tokenizer.json")))

    def ids(self, text: str, *, special: bool = True) -> list[int]:
        """Tokenize a text with what the model's own template puts around it (T5: </s> after it, BART: <s> …
        </s>, GPT-2: nothing).
        """
        first, *others = text.split(BREAK)
        apart = [self.tokenizer.encode(other, add_special_tokens=False).ids for other in others]
        return [*self.tokenizer.encode(first, add_special_tokens=special).ids, *chain(*apart)]

    def prompt(self, text: str) -> list[int]:
        """Tokenize the prompt of a decoder-only model. Chat templates may also write the first special token
        that the tokenizer adds; it is kept once.
        """
        ids = self.ids(text)
        twice = len(ids) > 1 and ids[0] == ids[1] and ids[0] in self.special
        return ids[1:] if twice and text.startswith(str(self.tokenizer.id_to_token(ids[0]))) else ids

    def text(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Decode ids to text."""
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=skip_special_tokens))

    def _piece(self, token: int) -> str:
        """Return what a token adds to a text that continues; a part of a character as OpenAI writes it, in
        hexadecimal after BYTES.
        """
        before = self.ids(ANCHOR, special=False)
        text = self.text([*before, token], skip_special_tokens=False)[len(self.text(before)) :]
        if INCOMPLETE not in text:
            return text
        raw = self._bytes(token)
        return BYTES + "".join(f"\\x{byte:02x}" for byte in raw) if raw else text

    def _bytes(self, token: int) -> bytes:
        """Return the bytes of a token that is part of a character: byte-level BPE has a letter for each
        (GPT-2), SentencePiece a token such as <0xF0>.
        """
        name, letters = str(self.tokenizer.id_to_token(token)), byte_alphabet()
        if fallback := re.fullmatch("<0x([0-9A-F]{2})>", name):
            return bytes.fromhex(fallback[1])
        bytes_of = {letter: byte for byte, letter in letters.items()}
        return bytes(bytes_of[letter] for letter in name) if set(name) <= bytes_of.keys() else b""

    def spellings(self, word: str) -> list[tuple[int, ...]]:
        """Return the ids that a word may have: at the start of a text, after a space and, if it starts with
        no letter or digit, after anything.

        Upstream uses only the first; a byte-level model can then still generate " word", which is another
        token.
        """
        found = [tuple(self.ids(word, special=False)), tuple(self.ids(" " + word, special=False))]
        before, after = self.ids(ANCHOR, special=False), self.ids(ANCHOR + word, special=False)
        if not word[0].isalnum() and after[: len(before)] == before:
            found.append(tuple(after[len(before) :]))
        return [ids for ids in dict.fromkeys(found) if ids and self.unknown not in ids]

    def word_list(self, words: Sequence[str]) -> NDArray[np.int32]:
        """Make word lists int32 [2, n]: all words' ids, and where each word ends, padded with -1
        (TensorRT-LLM's word lists).

        A word that this tokenizer cannot encode (a line break or 日 in T5) cannot be generated either and is
        left out.
        """
        spelt = [ids for word in words if word for ids in self.spellings(word)]
        flat = [token for ids in spelt for token in ids] or [0]
        ends = np.cumsum([len(ids) for ids in spelt]).tolist()
        return np.array([flat, [*ends, *[NO_END] * (len(flat) - len(ends))]], np.int32)


class GrowingText:
    """Decode ids that arrive one after another: spaces are kept, and a character is returned only when all
    its bytes are there.

    Only a window of the last ids is decoded each time, from the start of the last returned text, as other
    servers do (huggingface/text-generation-inference, `decode_token`).
    """

    def __init__(self, tokenizer: TextTokenizer, *, skip_special: bool = True) -> None:
        self.tokenizer = tokenizer
        self.skipped = tokenizer.special if skip_special else set[int]()
        self.ids: list[int] = []
        self.given = self.start = 0
        self.so_far = ""

    def add(self, ids: Sequence[int]) -> str:
        """Return what the ids add to the text."""
        self.ids += [i for i in ids if i not in self.skipped]
        return "" if self._window().endswith(INCOMPLETE) else self.rest()

    def rest(self) -> str:
        """Return what was held back; incomplete characters are shown as in the whole text."""
        if self.given == len(self.ids):
            return ""  # the window stays: at the start of one SentencePiece swallows a blank
        before, now = self._text(self.ids[self.start : self.given]), self._window()
        self.start, self.given = self.given, len(self.ids)
        self.so_far += now[len(before) :]
        return now[len(before) :]

    def _window(self) -> str:
        return self._text(self.ids[self.start :])

    def _text(self, ids: Sequence[int]) -> str:
        return self.tokenizer.text(ids, skip_special_tokens=bool(self.skipped))
