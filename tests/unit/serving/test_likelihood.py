"""Log probabilities before the temperature, made of a stream's logits, where the engine gives those
after it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose

from serving.engine.likelihood import untempered

WORDS, IDS = 11, [4, 9, 2, 7]
LOGITS = np.random.default_rng(3).normal(0, 3, (len(IDS), WORDS)).astype(np.float32)


class Tempered:
    """An engine in TensorRT-LLM's manner: its log probabilities are after the temperature, so all but 0; a
    stream brings logits [1, tokens, beams, vocabulary], padded by one id that the model does not have, and
    repeats earlier log probabilities.
    """

    def __init__(self, sizes: list[int]) -> None:
        self.sizes, self.seen = sizes, list[tuple[dict[str, Any], bool]]()

    def __call__(self, arrays: dict[str, Any], streaming: bool) -> Iterator[dict[str, Any]]:
        self.seen.append(({name: array.tolist() for name, array in arrays.items()}, streaming))
        at = 0
        for size in self.sizes if streaming else [len(IDS)]:
            at, ids = at + size, IDS[at : at + size]
            padded = np.pad(LOGITS[at - size : at], [(0, 0), (0, 1)], constant_values=90)[None, :, None]
            yield {
                "output_ids": np.array(ids, np.int32)[None, None],
                "sequence_length": np.array([[size]], np.int32),
                "output_log_probs": np.zeros((1, 1, at), np.float32),
                "cum_log_probs": np.zeros((1, 1), np.float32),
                **({"generation_logits": padded} if "return_generation_logits" in arrays else {}),
            }


def expected(bias: Any = 0.0) -> Any:
    """log softmax, written out."""
    biased = LOGITS.astype(np.float64) + bias
    return (biased - np.log(np.exp(biased).sum(1, keepdims=True)))[np.arange(len(IDS)), IDS]


def request(temperature: float, **more: Any) -> dict[str, Any]:
    """One row with an embedding bias as wide as the model, which is all 0."""
    return {
        "temperature": np.array([[temperature]], np.float32),
        "embedding_bias": np.zeros((1, WORDS), np.float32),
        **more,
    }


@pytest.mark.parametrize("sizes", [[1, 1, 1, 1], [2, 2], [1, 3], [4, 0]])
def test_an_answer_has_the_models_own_figures(sizes: list[int]) -> None:
    """However the stream brought it: ids in order, one log probability for each, and their sum."""
    engine = Tempered(sizes)
    (found,) = untempered(engine)(request(0.4), False)
    assert found["output_ids"].ravel().tolist() == IDS
    assert_allclose(found["output_log_probs"].ravel(), expected(), rtol=1e-5)
    assert_allclose(found["cum_log_probs"].item(), expected().sum(), rtol=1e-5)
    assert found["sequence_length"].item() == len(IDS)
    assert "generation_logits" not in found
    ((asked, streaming),) = engine.seen
    assert (asked["streaming"], asked["return_generation_logits"], streaming) == ([[True]], [[True]], True)


def test_the_requests_own_bias_counts() -> None:
    """TensorRT-LLM's logits are those before the bias."""
    bias = np.linspace(-4, 4, WORDS, dtype=np.float32)
    (found,) = untempered(Tempered([1, 1, 1, 1]))(request(0.4) | {"embedding_bias": bias[None]}, False)
    assert_allclose(found["output_log_probs"].ravel(), expected(bias), rtol=1e-5)


def test_a_stream_stays_one() -> None:
    """Each response has the figures of its own tokens, and the sum of all so far."""
    parts = list(untempered(Tempered([1, 2, 1]))(request(0.4), True))
    assert [part["output_log_probs"].size for part in parts] == [1, 2, 1]
    assert_allclose(
        np.concatenate([part["output_log_probs"].ravel() for part in parts]), expected(), rtol=1e-5
    )
    assert_allclose(
        [part["cum_log_probs"].item() for part in parts], expected().cumsum()[[0, 2, 3]], rtol=1e-5
    )


@pytest.mark.parametrize(
    "given", [request(0.0), request(1.0), {}, request(0.4, beam_width=np.array([[2]], np.int32))]
)
def test_other_requests_pass_unchanged(given: dict[str, Any]) -> None:
    """Greedy, at temperature 1, without one, and with beams."""
    engine = Tempered([4])
    (found,) = untempered(engine)(given, False)
    assert engine.seen == [({name: array.tolist() for name, array in given.items()}, False)]
    assert found["output_log_probs"].sum() == 0
