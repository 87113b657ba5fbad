"""Texts of the text façades: text that grows, word lists, streams that hold back what may become a stop word,
rows that do not fit together.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from conch.names import BREAK, BYTES
from serving.engine.answers import Answers
from serving.engine.collected import Collected
from serving.engine.jobs import Job
from serving.engine.sampling import Hypothesis, Sampling
from serving.errors import BadRequest
from serving.text.tokens import NO_END, GrowingText, TextTokenizer
from serving.triton.rows import refuse_samples

from ..conftest import ROOT

TOKENIZERS = {name: TextTokenizer.load(ROOT / "miniatures" / name) for name in ("t5", "bart", "gpt2")}
NAMES = pytest.mark.parametrize("name", list(TOKENIZERS))


def test_a_marked_special_token_is_text() -> None:
    """GPT-2's end of text, as a user writes it."""
    tokenizer = TOKENIZERS["gpt2"]
    marked, end = tokenizer.ids(f"a<{BREAK}|endoftext|> b"), tokenizer.ids("<|endoftext|>")
    assert not set(end) & set(marked) and len(end) == 1
    assert tokenizer.text(marked) == "a<|endoftext|> b"


def test_tokens_that_are_parts_of_a_character_have_their_bytes() -> None:
    """As OpenAI writes them."""
    tokenizer = TOKENIZERS["gpt2"]
    pieces = [tokenizer.piece(token) for token in tokenizer.ids("😀")]
    digits = [piece.removeprefix(BYTES).replace("\\x", "") for piece in pieces]
    assert len(pieces) > 1 and bytes.fromhex("".join(digits)) == "😀".encode()


def pieces(name: str, ids: list[int], cuts: list[int], *, skip_special: bool = True) -> list[str]:
    """What comes out when `ids` arrive in groups of the sizes `cuts`, and what is left at the end."""
    text, found, at = GrowingText(TOKENIZERS[name], skip_special=skip_special), [], 0
    while at < len(ids):
        size = cuts[len(found) % len(cuts)]
        found.append(text.add(ids[at : at + size]))
        at += size
    found.append(text.rest())
    assert text.so_far == "".join(found)
    return found


@NAMES
@pytest.mark.parametrize("skip_special", [True, False])
@given(data=st.data())
def test_pieces_add_up_to_the_whole_text(name: str, skip_special: bool, data: st.DataObject) -> None:
    """Any ids at all, special ones and parts of characters among them, in groups of any size."""
    tokenizer = TOKENIZERS[name]
    ids = data.draw(st.lists(st.integers(0, tokenizer.tokenizer.get_vocab_size() - 1), max_size=40))
    cuts = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=5))
    assert "".join(pieces(name, ids, cuts, skip_special=skip_special)) == tokenizer.text(
        ids, skip_special_tokens=skip_special
    )


@pytest.mark.parametrize("name", ["bart", "gpt2"])
@given(
    words=st.lists(
        st.sampled_from(["Zürich", "日本", "👩‍👩‍👧", " ", "naïve", "the mayor", "\n", "é"]),
        min_size=1,
        max_size=8,
    )
)
def test_no_piece_has_half_a_character(name: str, words: list[str]) -> None:
    """Byte-level models write a character in up to four tokens; it comes out whole."""
    text = "".join(words)
    found = pieces(name, TOKENIZERS[name].ids(text, special=False), [1])
    assert "".join(found) == text
    assert not any("\ufffd" in piece for piece in found)


def test_blanks_are_kept_between_pieces() -> None:
    """SentencePiece's first blank is none, all others are."""
    ids = TOKENIZERS["t5"].ids("the old town", special=False)
    found = pieces("t5", ids, [1])
    assert "".join(found) == "the old town"
    assert any(piece.startswith(" ") for piece in found)


@NAMES
@pytest.mark.parametrize("words", [[], [""], ["the"], ["the mayor", ".", ""], ["a", "a"]])
def test_word_lists_can_be_read_back(name: str, words: list[str]) -> None:
    """[2, n]: ids back to back, ends that never fall, filled up with -1; reading gives each spelling."""
    tokenizer = TOKENIZERS[name]
    ids, ends = tokenizer.word_list(words)
    real = ends[ends != NO_END].tolist()
    assert all(before < after for before, after in pairwise([0, *real]))
    assert (ends[len(real) :] == NO_END).all()
    read = [tuple(ids[a:b].tolist()) for a, b in pairwise([0, *real])]
    assert read == [spelling for word in words if word for spelling in tokenizer.spellings(word)]


def test_words_are_found_wherever_they_stand() -> None:
    """After a blank a byte-level token is another one; punctuation also stands after letters."""
    tokenizer = TOKENIZERS["gpt2"]
    spellings = tokenizer.spellings("mayor")
    assert {tokenizer.text(ids) for ids in spellings} == {"mayor", " mayor"}
    inside = tuple(tokenizer.ids("town.", special=False)[-1:])
    assert inside in tokenizer.spellings(".")


def test_a_word_that_cannot_be_written_stops_nothing() -> None:
    """Spelt as the unknown token, it would be found in any other unknown text."""
    tokenizer = TOKENIZERS["t5"]
    assert tokenizer.unknown in tokenizer.ids("日", special=False)
    assert tokenizer.spellings("日") == []


def answers(stop: tuple[tuple[int, ...], ...]) -> Answers:
    sampling = Sampling(10, 49, stop_words=stop)
    return Answers(Job((1,), sampling, Collected(), streaming=True, log_probs=True))


def said(arrays: dict[str, np.ndarray] | None) -> list[int]:
    return [] if arrays is None else arrays["output_ids"].ravel()[: arrays["sequence_length"].item()].tolist()


def play(tokens: list[int], stop: tuple[tuple[int, ...], ...]) -> list[list[int]]:
    """The scheduler's calls for a stream of these tokens."""
    told, best, found = answers(stop), Hypothesis(), []
    for token in tokens:
        best = best.plus(token, -0.5, told.job.sampling, None)
        if best.finished:
            break
        found.append(said(told.update([best])))
    last = told.finish([best])
    assert last["output_log_probs"].shape[-1] >= last["sequence_length"].item()
    return [*found, said(last)]


def test_a_prefix_of_a_stop_word_is_held_back() -> None:
    assert play([5, 7, 8, 9, 3], ((7, 8, 9),)) == [[5], [], [], []], "the stop word never shows"
    assert play([5, 7, 8, 6, 49], ((7, 8, 9),)) == [[5], [], [], [7, 8, 6], []], (
        "what became none is given out at once"
    )
    assert play([5, 7, 49], ((7, 8),)) == [[5], [], [7]], "what was held at the end of the text belongs to it"


@given(
    tokens=st.lists(st.integers(1, 3), min_size=1, max_size=10),
    stop=st.lists(st.lists(st.integers(1, 3), min_size=2, max_size=4), max_size=3),
)
def test_held_back_or_not_nothing_is_lost(tokens: list[int], stop: list[list[int]]) -> None:
    """The pieces of a stream are the hypothesis, whatever words stop it."""
    words, best = tuple(tuple(word) for word in stop), Hypothesis()
    for token in tokens:
        best = best.plus(token, -0.5, Sampling(10, 49, stop_words=words), None)
        if best.finished:
            break
    assert [token for piece in play(tokens, words) for token in piece] == list(best.ids)


def test_samples_in_one_request_are_refused() -> None:
    """TensorRT-LLM would answer with several responses, whose last alone would be kept; beams come in one."""
    for sequences, beams in ((0, 1), (1, 1), (2, 4)):
        refuse_samples({"num_return_sequences": np.array([[sequences]]), "beam_width": np.array([[beams]])})
    refuse_samples({"num_return_sequences": np.zeros((1, 0), np.int32)})
    with pytest.raises(
        BadRequest, match="num_return_sequences is 3, beam_width 1; send one request for each text"
    ):
        refuse_samples({"num_return_sequences": np.array([3])})
