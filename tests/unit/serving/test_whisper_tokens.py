"""Vocabularies, prompts and segments."""

from __future__ import annotations

import pytest
import tiktoken

from build.whisper_vocabulary import ASSETS, _ranks, whisper_tokenizer
from serving.audio.tokens import WhisperVocabulary
from serving.errors import BadRequest

# openai-whisper tokenizer.py, get_encoding
PATTERN = r"""'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"""


@pytest.fixture(scope="module")
def words() -> WhisperVocabulary:
    return WhisperVocabulary(whisper_tokenizer(99))


@pytest.mark.parametrize(("multilingual", "file"), [(True, "multilingual"), (False, "gpt2")])
def test_equal_to_tiktoken(multilingual: bool, file: str) -> None:
    """Byte-pair merges rebuilt from ranks give tiktoken's ids."""
    ranks = _ranks(ASSETS / f"{file}.tiktoken")
    theirs = tiktoken.Encoding("whisper", pat_str=PATTERN, mergeable_ranks=ranks, special_tokens={})
    ours = whisper_tokenizer(99, multilingual=multilingual)
    for text in (" The red lamp.", "¿Dónde está el pájaro?", "你好 world 🙂\n\n x", " I'll  say   1234!"):
        assert ours.encode(text, add_special_tokens=False).ids == theirs.encode(text)


@pytest.mark.parametrize(
    ("languages", "multilingual", "size", "start"),
    [(99, True, 51865, 50258), (100, True, 51866, 50258), (99, False, 51864, 50257)],
)
def test_special_ids_follow_the_vocabulary(languages: int, multilingual: bool, size: int, start: int) -> None:
    """v2, v3 and .en models differ in size, languages and ids; all of it is read, nothing assumed."""
    words = WhisperVocabulary(whisper_tokenizer(languages, multilingual=multilingual))
    assert words.tokenizer.get_vocab_size() == size
    assert words.start == start
    assert words.multilingual is multilingual
    assert len(words.languages) == (languages if multilingual else 0)
    assert words.tokenizer.id_to_token(words.first_timestamp) == "<|0.00|>"
    assert words.first_timestamp + 1500 == size - 1


def test_prompts(words: WhisperVocabulary) -> None:
    """Empty means upstream's default; a missing language asks for detection; context is shortened from the
    left.
    """
    assert words.prompt("", 448).ids == (50258, 50259, 50359, 50363)
    detect = words.prompt("<|startoftranscript|><|transcribe|>", 448)
    assert (detect.language, detect.in_language("es", 50262).ids) == (None, (50258, 50262, 50359))
    long = words.prompt("<|startofprev|>" + " word" * 1000 + "<|startoftranscript|><|en|><|transcribe|>", 448)
    assert long.ids[0] == 50361
    assert long.ids.index(50258) == 224
    timed = "<|startofprev|><|0.00|> word<|29.98|><|startoftranscript|><|en|><|transcribe|>"
    assert words.prompt(timed, 448).ids == (50361, 50364, 1349, 51863, 50258, 50259, 50359)
    for bad in ("hello", "<|startoftranscript|><|nothing|>"):
        with pytest.raises(BadRequest):
            words.prompt(bad, 448)


def test_a_translation_is_written_in_english(words: WhisperVocabulary) -> None:
    """Its words stand between blanks; a transcript in Chinese has one in each character."""
    for task, written in (("translate", "en"), ("transcribe", "zh")):
        assert words.written(words.prompt(f"<|startoftranscript|><|zh|><|{task}|>", 448)) == written
    spoken = words.tokenizer.encode("言った。「そう」《你好》（いい）", add_special_tokens=False).ids
    assert not {"「", "」", "《", "》", "（", "）"} & set(
        "".join(word.text for word in words.words(spoken, "ja"))
    )


def test_english_only_models_get_no_language_and_no_task() -> None:
    """`.en` models know the tokens but were never prompted with them; another language is refused."""
    words = WhisperVocabulary(whisper_tokenizer(99, multilingual=False))
    assert (
        words.prompt("", 448).ids
        == words.prompt("<|startoftranscript|><|en|><|transcribe|><|notimestamps|>", 448).ids
        == (50257, 50362)
    )
    for bad in ("<|es|><|transcribe|>", "<|en|><|translate|>"):
        with pytest.raises(BadRequest, match="English only"):
            words.prompt(f"<|startoftranscript|>{bad}", 448)


@pytest.mark.parametrize(
    ("spoken", "expected"),
    [
        (
            "<|0.00|> Hello there.<|1.20|><|1.40|> Good night.<|2.00|>",
            [(0.0, 1.2, "Hello there."), (1.4, 2.0, "Good night.")],
        ),
        ("<|0.00|> One.<|1.00|> Two.<|2.00|>", [(0.0, 1.0, "One."), (1.0, 2.0, "Two.")]),
        (" No times at all", [(0.0, 2.5, "No times at all")]),
        ("<|0.50|> Never closed", [(0.5, 2.5, "Never closed")]),
        ("<|2.00|> Runs<|1.00|> back<|9.00|>", [(2.0, 2.0, "Runs"), (2.0, 2.5, "back")]),
        ("<|0.00|>", []),
        ("", []),
    ],
)
def test_segments_are_repaired(
    words: WhisperVocabulary, spoken: str, expected: list[tuple[float, float, str]]
) -> None:
    """Whatever order the model gives its times in, segments run forward and end inside the window."""
    ids = words.tokenizer.encode(spoken, add_special_tokens=False).ids
    segments = words.segments(ids, 2.5)
    assert [(s.start, s.end, s.text) for s in segments] == expected
    said = [token for token in ids if token != words.end]
    assert [token for s in segments for token in s.tokens] == (said if segments else []), (
        "tokens and their probabilities are matched by position"
    )
