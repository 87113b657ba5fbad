"""What both sides of Whisper share, against what others publish."""

from __future__ import annotations

import pytest
from tokenizers import pre_tokenizers

from conch.whisper import byte_alphabet, text_prefix


@pytest.mark.parametrize(
    ("arguments", "prompt"),
    [
        (("transcribe",), "<|startoftranscript|><|transcribe|>"),
        (("translate", "es"), "<|startoftranscript|><|es|><|translate|>"),
        (
            ("transcribe", "en", "<|0.00|> Hugo"),
            "<|startofprev|><|0.00|> Hugo<|startoftranscript|><|en|><|transcribe|>",
        ),
        (("transcribe", None, " Hugo "), "<|startofprev|> Hugo<|startoftranscript|><|transcribe|>"),
    ],
)
def test_a_prompt_is_whispers_own_tokens(arguments: tuple[str, ...], prompt: str) -> None:
    """Context, language and task, and the token that wants no times after them."""
    assert text_prefix(*arguments) == prompt
    assert text_prefix(*arguments, timestamps=False) == f"{prompt}<|notimestamps|>"


def test_the_byte_alphabet_is_that_of_the_tokenizers_library() -> None:
    """Each byte has a character of its own."""
    assert sorted(byte_alphabet()) == list(range(256))
    assert set(byte_alphabet().values()) == set(pre_tokenizers.ByteLevel.alphabet())
