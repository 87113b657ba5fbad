"""Requests of several rows, and what TensorRT-LLM understands otherwise than it is meant:
`serving/triton/rows.py`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from serving.errors import BadRequest
from serving.triton.rows import (
    MOST_LOGITS,
    greedy_at_zero,
    newest,
    refuse_beams,
    refuse_logits,
    refuse_misread,
    split,
    started,
)

BOTH = [[0.5], [0.5]]
IDS = np.array([[5, 6, 7], [8, 9, 0]], np.int32)


def test_an_empty_list_of_extra_ids_is_none() -> None:
    """Preprocessing gives one, with as many rows as the text has, where nobody sent an id."""
    inputs = {
        "input_ids": IDS,
        "input_lengths": np.array([[3], [2]], np.int32),
        "prompt_table_extra_ids": np.zeros((2, 0), np.uint64),
    }
    assert all("prompt_table_extra_ids" not in row for row in split(inputs))


@pytest.mark.parametrize(
    "name",
    [
        "return_log_probs",
        "return_generation_logits",
        "return_step_attention",
        "beam_width",
        "num_return_sequences",
    ],
)
def test_rows_must_agree_on_what_they_return(name: str) -> None:
    """Else their results could not be joined. Other parameters may differ; scalars may be [rows]."""
    assert len(split({"input_ids": IDS, name: np.array([1, 1]), "temperature": np.array([0.5, 1])})) == 2
    with pytest.raises(BadRequest, match=f"{name} differs between the rows of one request"):
        split({"input_ids": IDS, name: np.array([[1], [0]])})


def test_rows_lose_their_padding() -> None:
    """Ids and features end where their row's length says; a scalar comes out as [1, 1]."""
    features = np.arange(12, dtype=np.float16).reshape(2, 3, 2)
    start, lengths = np.array([[2, 0], [2, 4]], np.int32), np.array([[3], [2]], np.int32)
    inputs = {
        "input_ids": IDS,
        "encoder_input_features": features,
        "input_lengths": lengths,
        "seed": np.array([1, 2]),
        "decoder_input_ids": start,
        "decoder_input_lengths": np.array([1, 2], np.int32),
    }
    first, second = split(inputs)
    assert (first["input_ids"].tolist(), second["input_ids"].tolist()) == ([[5, 6, 7]], [[8, 9]])
    assert (first["encoder_input_features"].shape, second["encoder_input_features"].shape) == (
        (1, 3, 2),
        (1, 2, 2),
    )
    assert (first["decoder_input_ids"].tolist(), second["decoder_input_ids"].tolist()) == ([[2]], [[2, 4]])
    assert (first["seed"].tolist(), second["seed"].tolist()) == ([[1]], [[2]])


@pytest.mark.parametrize("length", [-1, 4])
def test_a_length_that_the_row_does_not_have_is_refused(length: int) -> None:
    """By the names of both inputs."""
    with pytest.raises(BadRequest, match=f"input_lengths is {length}; it must be 0 to 3"):
        split({"input_ids": IDS, "input_lengths": np.array([[3], [length]], np.int32)})


@pytest.mark.parametrize(
    ("given", "found"),
    [
        (
            {"temperature": [[0.0]], "runtime_top_p": [[0.9]], "seed": [[3]]},
            {"seed": [[3]], "runtime_top_k": [[1]]},
        ),
        *[(same, same) for same in ({"temperature": [[0.5]], "runtime_top_p": [[0.5]]}, {"seed": [[3]]})],
        (
            {"temperature": [[0.0], [2.0]], "runtime_top_p": BOTH},
            {"temperature": [[1.0], [2.0]], "runtime_top_p": BOTH, "runtime_top_k": [[1], [0]]},
        ),
        (
            {"temperature": [[0.0], [2.0]], "runtime_top_k": [[7], [8]]},
            {"temperature": [[1.0], [2.0]], "runtime_top_k": [[1], [8]]},
        ),
    ],
)
def test_temperature_zero_is_top_k_1(given: dict[str, Any], found: dict[str, Any]) -> None:
    """Without temperature and top_p, with which TensorRT-LLM would draw; a seed stays. Of two rows each keeps
    its own choice; top_k 0 is "all" in the row that draws.
    """
    made = greedy_at_zero({name: np.array(value) for name, value in given.items()})
    assert {name: array.tolist() for name, array in made.items()} == found


def test_a_decoder_starts_as_its_model_does() -> None:
    """Only where the request brings no start and the model has one."""
    row = {"input_ids": IDS[:1]}
    found = started(row, [2, 0])
    assert (found["decoder_input_ids"].tolist(), found["decoder_input_lengths"].tolist()) == ([[2, 0]], [[2]])
    assert started(row, []) is row
    own = row | {"decoder_input_ids": np.array([[2, 0, 9]], np.int32)}
    assert started(own, [2, 0]) is own


def test_logits_are_bounded_by_what_the_stubs_can_hold() -> None:
    """Beams count, rows count, and the error says how many tokens would do."""
    vocabulary, beams = 50_000, 4
    most = MOST_LOGITS // (4 * beams * vocabulary)
    asked = {"return_generation_logits": np.array([[True]]), "beam_width": np.array([[beams]], np.int32)}
    refuse_logits(asked | {"request_output_len": np.array([[most]])}, vocabulary)
    with pytest.raises(BadRequest, match=f"ask for {most} tokens at most, or stream"):
        refuse_logits(asked | {"request_output_len": np.array([[most + 1]])}, vocabulary)
    with pytest.raises(BadRequest, match=f"for {most + 1} tokens"):
        refuse_logits(asked | {"request_output_len": np.array([[most], [1]])}, vocabulary)
    refuse_logits(
        {"return_generation_logits": np.array([[False]]), "request_output_len": np.array([[10**6]])},
        vocabulary,
    )


def test_more_beams_than_are_served_are_refused() -> None:
    """Where the width is known; the widest row decides."""
    refuse_beams({"beam_width": np.array([[1], [4]])}, 4)
    refuse_beams({"beam_width": np.array([[9]])}, None)
    refuse_beams({}, 1)
    with pytest.raises(BadRequest, match="beam_width is 4, this deployment serves 1"):
        refuse_beams({"beam_width": np.array([[1], [4]])}, 1)


def test_what_an_engine_misreads_is_refused() -> None:
    """Which inputs those are, its facts say; absent and empty ones pass."""
    misread = ["early_stopping", "runtime_top_p_min"]
    with pytest.raises(BadRequest, match="runtime_top_p_min is not supported"):
        refuse_misread({"runtime_top_p_min": np.array([[0.1]], np.float32)}, misread)
    refuse_misread({"seed": np.array([[1]]), "early_stopping": np.zeros((1, 0), bool)}, misread)
    refuse_misread({"runtime_top_p_min": np.array([[0.1]], np.float32)}, [])


def test_log_probabilities_of_a_stream_are_the_last_ones() -> None:
    """TensorRT-LLM repeats the earlier ones, the portable engine does not."""
    assert newest(np.array([[[-1.0, -2.0, -3.0]]]), 1).tolist() == [-3.0]
    assert newest(np.array([[[-3.0]]]), 1).tolist() == [-3.0]
    assert newest(np.array([[[-3.0]]]), 0).tolist() == []
