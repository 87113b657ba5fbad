"""What the gateway, which asks for a transcript, and the façade, which makes it, must agree on."""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

# Languages that are written without blanks, so each token that ends a character ends a word, and texts are
# joined without one (openai/whisper tokenizer.py, `split_to_word_tokens`).
BLANKLESS = frozenset({"zh", "ja", "th", "lo", "my", "yue"})


# The end of gpt2's vocabulary, which `.en` models have; the multilingual one is a token longer.
MULTILINGUAL = 50257
# openai/whisper transcribe.py: of a text that repeats itself, and of one that is doubtful.
COMPRESSION_LIMIT, LOG_PROB_LIMIT = 2.4, -1.0
LANGUAGE = re.compile(r"<\|([a-z]{2,3})\|>")


def languages() -> dict[str, str]:
    """Return the English names of all languages by their codes, in the order of Whisper's tokens."""
    return dict(json.loads(Path(__file__).with_name("languages.json").read_text("utf-8")))


def languages_of(tokenizer: Mapping[str, Any]) -> tuple[str, ...]:
    """Read the language codes of a Whisper from its tokenizer.json; empty for another model's."""
    ids = {row["content"]: row["id"] for row in tokenizer.get("added_tokens", ())}
    start, end = ids.get("<|startoftranscript|>"), ids.get("<|endoftext|>", 0)
    if start is None:
        return ()
    if end < MULTILINGUAL:
        return ("en",)
    last = ids.get("<|translate|>", start)
    return tuple(
        found[1] for name, i in ids.items() if start < i < last and (found := LANGUAGE.fullmatch(name))
    )


def compression_ratio(text: str) -> float:
    """Divide a text's length by its zlib-compressed length (openai/whisper utils.py)."""
    raw = text.encode()
    return len(raw) / len(zlib.compress(raw)) if raw else 0.0


def repeats(text: str) -> bool:
    """Tell whether a text repeats itself (a loop of the decoder)."""
    return compression_ratio(text) > COMPRESSION_LIMIT


def text_prefix(task: str, language: str | None = None, prompt: str = "", *, timestamps: bool = True) -> str:
    """Write the decoder's prompt in the form that `whisper_bls` reads from TEXT_PREFIX. `task` is transcribe
    or translate; `language` an ISO code, or None if the façade shall detect it; `prompt` earlier text, or
    text with timestamps, whose first needs no space before it.
    """
    earlier = prompt.strip()
    blank = "" if earlier.startswith("<|") else " "
    context = f"<|startofprev|>{blank}{earlier}" if earlier else ""
    spoken = f"<|{language}|>" if language else ""
    return f"{context}<|startoftranscript|>{spoken}<|{task}|>{'' if timestamps else '<|notimestamps|>'}"


def byte_alphabet() -> dict[int, str]:
    """Map each byte to its printable character in byte-level BPE (openai/gpt-2, encoder.py,
    `bytes_to_unicode`).
    """
    printable = [
        *range(ord("!"), ord("~") + 1),
        *range(ord("¡"), ord("¬") + 1),
        *range(ord("®"), ord("ÿ") + 1),
    ]
    others = [byte for byte in range(256) if byte not in printable]
    return {byte: chr(byte) for byte in printable} | {byte: chr(256 + n) for n, byte in enumerate(others)}
