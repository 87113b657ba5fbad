"""Word times: the smoothing, the path, and words out of tokens."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.lib.stride_tricks import sliding_window_view

from serving.audio.alignment import smooth, token_starts, warp
from serving.audio.tokens import WhisperVocabulary

from ..conftest import MINIATURE


def slow_warp(cost: np.ndarray) -> float:
    """The cost of the best path, cell by cell (openai/whisper timing.py, dtw_cpu)."""
    n, m = cost.shape
    total = np.full((n + 1, m + 1), np.inf)
    total[0, 0] = 0
    for j in range(1, m + 1):
        for i in range(1, n + 1):
            total[i, j] = cost[i - 1, j - 1] + min(total[i - 1, j - 1], total[i - 1, j], total[i, j - 1])
    return float(total[n, m])


def path(cost: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Corner to corner, one step at a time."""
    rows, columns = warp(cost)
    assert (rows[0], columns[0], rows[-1], columns[-1]) == (0, 0, cost.shape[0] - 1, cost.shape[1] - 1)
    assert set(zip(np.diff(rows), np.diff(columns), strict=True)) <= {(0, 1), (1, 0), (1, 1)}
    return rows, columns


def medians(weights: np.ndarray) -> np.ndarray:
    """Numpy's own of seven, reflected at the ends."""
    padded = np.pad(weights, ((0, 0), (0, 0), (3, 3)), mode="reflect")
    return np.median(sliding_window_view(padded, 7, axis=-1), axis=-1)


@pytest.mark.parametrize("shape", [(1, 1), (1, 9), (9, 1), (5, 40), (40, 5), (30, 30)])
def test_the_path_is_the_cheapest(shape: tuple[int, int]) -> None:
    """A row at once finds what the double loop finds; costs that are no numbers have a path, whichever."""
    cost = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    assert cost[path(cost)].sum() == pytest.approx(slow_warp(cost), abs=1e-3)
    path(np.full(shape, np.nan, np.float32))


@pytest.mark.parametrize("size", [1, 3, 4, 7, 50])
def test_smoothing_is_a_median_of_seven(size: int) -> None:
    """As numpy's own, reflected at the ends; too short a row stays as it is."""
    weights = np.random.default_rng(2).random((2, 3, size)).astype(np.float32)
    assert np.array_equal(smooth(weights), weights if size <= 3 else medians(weights))


def test_the_formula_is_openais() -> None:
    """On attention at random, the starts of openai/whisper timing.py, written down step by step."""
    rng = np.random.default_rng(8)
    scores = rng.standard_normal((4, 30, 200)).astype(np.float32)
    for row in range(30):
        scores[:, row, 5 * row : 5 * row + 12] += 3.0
    frames = 170
    scores[:, :, frames:] += rng.uniform(0.0, 9.0, (4, 30, 1)).astype(np.float32)  # counts for nothing
    whole = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
    weights = np.exp(scores[:, :, :frames]) / np.exp(scores[:, :, :frames]).sum(-1, keepdims=True)
    weights = (weights - weights.mean(-2, keepdims=True)) / weights.std(-2, keepdims=True)
    rows, columns = warp(-medians(weights).mean(0).astype(np.float32))
    jumps = np.pad(np.diff(rows), (1, 0), constant_values=1).astype(bool)
    assert np.abs(token_starts(whole.astype(np.float16), frames) - columns[jumps] / 50).max() <= 0.02


@pytest.mark.parametrize(
    ("text", "language", "words"),
    [
        (" Hugo has ten keys.", "en", ["Hugo", "has", "ten", "keys"]),
        (" ¿Dónde está? — ¡Aquí!", "es", ["Dónde", "está", "Aquí"]),
        (" twenty-five o'clock", "en", ["twenty-five", "o'clock"]),
        ("今日は、雨", "ja", ["今日は", "雨"]),
        (" 🙂 yes", "en", ["🙂", "yes"]),
        ("", "en", []),
    ],
)
def test_words_out_of_tokens(text: str, language: str, words: list[str]) -> None:
    """Blanks part words, punctuation around them goes, characters of several tokens stay whole, in scripts
    without blanks each token is a word.
    """
    vocabulary = WhisperVocabulary.load(MINIATURE)
    tokens = vocabulary.tokenizer.encode(text, add_special_tokens=False).ids
    found = vocabulary.words(tokens, language)
    assert [word.text for word in found] == words
    assert b"".join(vocabulary.token_bytes(token) for token in tokens).decode() == text
    assert all(0 <= word.first < word.end <= len(tokens) for word in found)


def test_punctuation_is_no_part_of_a_word() -> None:
    """The pause after a comma belongs to the comma; bytes that spell nothing lose no word."""
    vocabulary = WhisperVocabulary.load(MINIATURE)
    tokens = vocabulary.tokenizer.encode(" Stop now, Victor.", add_special_tokens=False).ids
    assert [
        (word.text, vocabulary.tokenizer.decode(tokens[word.first : word.end]).strip())
        for word in vocabulary.words(tokens, "en")
    ] == [(text, text) for text in ("Stop", "now", "Victor")]
    stray = next(i for i in range(vocabulary.end) if vocabulary.token_bytes(i) == b"\x80")
    assert [word.text for word in vocabulary.words([*tokens, stray, *tokens], "en")][-3:] == [
        "Stop",
        "now",
        "Victor",
    ]
