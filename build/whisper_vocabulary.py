"""Build Whisper's vocabularies as Hugging Face `tokenizers` from the rank files that OpenAI publishes with
its code.

A rank file has one line per token: base64 of its bytes, a space, its rank. Ids above the ranks are special
tokens in the order of openai-whisper's `tokenizer.get_encoding`: end of text, start of transcript, the
languages, the tasks, 1,501 timestamps of 20 ms.
"""

from __future__ import annotations

import base64
import json
from functools import cache
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from conch.whisper import byte_alphabet, languages

ASSETS = Path(__file__).parent / "assets" / "whisper"
LANGUAGES = tuple(languages())
# (layer, head) pairs that times follow, of openai/whisper's models by their names.
ALIGNMENT_HEADS: dict[str, list[list[int]]] = json.loads((ASSETS / "alignment_heads.json").read_text("utf-8"))
TASKS = ("translate", "transcribe", "startoflm", "startofprev", "nospeech")
TIMESTAMPS = tuple(f"<|{i * 0.02:.2f}|>" for i in range(1501))


def _ranks(path: Path) -> dict[bytes, int]:
    lines = path.read_text("ascii").split("\n")
    return {base64.b64decode(token): int(rank) for token, rank in (line.split() for line in lines if line)}


def _merge_of(token: bytes, ranks: dict[bytes, int]) -> tuple[bytes, bytes]:
    """Return the two parts that byte-pair encoding joins last to make `token`, by encoding it with the lower
    ranks only.
    """
    parts = [bytes([b]) for b in token]
    while len(parts) > 2:
        joined = [(ranks.get(parts[i] + parts[i + 1], ranks[token]), i) for i in range(len(parts) - 1)]
        _, i = min(joined)
        parts[i : i + 2] = [parts[i] + parts[i + 1]]
    return parts[0], parts[1]


@cache
def _byte_pairs(path: Path) -> tuple[dict[str, int], list[tuple[str, str]]]:
    """Return token ids, and merges in the order of their ranks; callers must not modify them."""
    alphabet = byte_alphabet()
    ranks = _ranks(path)
    written = {token: "".join(alphabet[b] for b in token) for token in ranks}
    merges = [
        ("".join(alphabet[b] for b in left), "".join(alphabet[b] for b in right))
        for left, right in (_merge_of(token, ranks) for token in ranks if len(token) > 1)
    ]
    return {written[token]: rank for token, rank in ranks.items()}, merges


def special_tokens(languages: int) -> list[str]:
    """Return special tokens in id order for a model with `languages` languages (99, or 100 for v3)."""
    names = ("endoftext", "startoftranscript", *LANGUAGES[:languages], *TASKS, "notimestamps")
    return [f"<|{name}|>" for name in names]


def whisper_tokenizer(languages: int, *, multilingual: bool = True) -> Tokenizer:
    """Build the tokenizer; `.en` models have multilingual=False and 99 languages in their special tokens."""
    vocabulary, merges = _byte_pairs(ASSETS / ("multilingual.tiktoken" if multilingual else "gpt2.tiktoken"))
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(
        [AddedToken(token, normalized=False, special=True) for token in special_tokens(languages)]
    )
    tokenizer.add_tokens([AddedToken(token, normalized=False) for token in TIMESTAMPS])
    return tokenizer


def languages_of(vocabulary: int) -> tuple[int, bool]:
    """Return how many languages a vocabulary of this size has, and whether the model is multilingual: `.en`
    models have 99 names and one token less.
    """
    return (vocabulary - 51766, True) if vocabulary >= 51865 else (99, False)


# openai/whisper tokenizer.py, `non_speech_tokens`; decoding.py, `_get_suppress_tokens`.
SIGNS = '"#()*+/:;<=>@[\\]^_`{|}~「」『』'
LONGER_SIGNS = "<< >> <<< >>> -- --- -( -[ (' (\" (( )) ((( ))) [[ ]] {{ }} ♪♪ ♪♪♪"
MUSIC = "♩♪♫♬♭♮♯"
BEGINNINGS = tuple(f"<|{name}|>" for name in ("startoftranscript", *TASKS))


def non_speech_ids(tokenizer: Tokenizer) -> list[int]:
    """Return ids that no transcript should contain: brackets, music and other signs that are not spoken, and
    special tokens that start something.
    """

    def ids(text: str) -> list[int]:
        return [int(i) for i in tokenizer.encode(text, add_special_tokens=False).ids]

    found = {ids(" -")[0], ids(" '")[0]}
    for sign in [*SIGNS, *LONGER_SIGNS.split(), *MUSIC]:
        for spelt in (ids(sign), ids(" " + sign)):
            if len(spelt) == 1 or sign in MUSIC:
                found.add(spelt[0])
    return sorted(found | {i for token in BEGINNINGS if (i := tokenizer.token_to_id(token)) is not None})
