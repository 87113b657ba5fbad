"""Tensors that cannot be served are refused by name before they reach the batch."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from conch.bundle import EngineFacts
from serving.engine.collected import Collected
from serving.engine.inputs import PROMPT_TABLE, UNSUPPORTED, parse, stops
from serving.errors import BadRequest

FACTS = EngineFacts(
    "whisper", 448, 51865, 50257, layers=4, heads=3, head_width=32, mels=80, encoder_positions=1500
)
LISTENS = replace(FACTS, takes_samples=True)


def arrays(**changes: Any) -> dict[str, Any]:
    given = {
        "encoder_input_features": np.zeros((1, 100, 80), np.float16),
        "decoder_input_ids": np.array([[50258, 50259]], np.int32),
        "request_output_len": np.array([5], np.int32),
    }
    return {name: array for name, array in {**given, **changes}.items() if array is not None}


SCALARS = [
    *[("temperature", np.nan), ("temperature", -1.0), ("end_id", 60000), ("runtime_top_k", -5)],
    *[("runtime_top_p", 2.0), ("repetition_penalty", 0.0), ("len_penalty", 5000.0), ("min_tokens", -1)],
]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"encoder_input_features": np.full((1, 100, 80), np.inf, np.float16)}, "NaN or infinite"),
        ({"encoder_input_features": np.zeros((1, 100, 128), np.float16)}, "80"),
        ({"encoder_input_features": np.zeros((1, 3002, 80), np.float16)}, "3000"),
        ({"encoder_input_features": None}, "encoder_input_features is missing"),
        ({"decoder_input_ids": None}, "decoder_input_ids is missing"),
        ({"decoder_input_ids": np.array([[51865]], np.int32)}, "decoder_input_ids"),
        ({"decoder_input_ids": np.zeros((2, 2), np.int32)}, "one sequence"),
        ({"bad_words_list": np.array([[[60000], [1]]], np.int32)}, "bad_words_list"),
        ({"embedding_bias": np.zeros((1, 10), np.float32)}, "embedding_bias has 10 values"),
        ({"embedding_bias": np.full((1, 51865), np.nan, np.float32)}, "embedding_bias"),
        ({"num_return_sequences": np.array([3], np.int32)}, "num_return_sequences"),
        ({"num_return_sequences": np.array([-3], np.int32)}, "num_return_sequences"),
        ({"bad_words_list": np.array([[[1] * 20_000, [1, 20_000] * 10_000]], np.int32)}, "send 4096 at most"),
        ({"bad_words_list": np.array([[[1] * 4097, range(1, 4098)]], np.int32)}, "has 4097 words"),
        ({"bad_words_list": np.array([[[1, 2, 3], [1, 3, 2]]], np.int32)}, "rising"),
        ({"bad_words_list": np.array([[[1, 2, 3], [1, 4, -1]]], np.int32)}, "3 at most"),
        ({"return_context_logits": np.array([True])}, "return_context_logits"),
        *[({name: np.array([value], f"{np.dtype(type(value)).kind}4")}, name) for name, value in SCALARS],
    ],
)
def test_arrays_that_do_not_fit(changes: dict[str, Any], says: str) -> None:
    """Shapes, ids and values are checked before anything is queued."""
    with pytest.raises(BadRequest, match=says):
        parse(arrays(**changes), Collected(), FACTS)


@pytest.mark.parametrize("name", [*UNSUPPORTED, *PROMPT_TABLE])
def test_unsupported_tensors_are_never_ignored(name: str) -> None:
    """What the engine has no answer to is refused, and so are tables where it was built without."""
    with pytest.raises(BadRequest, match=f"{name} is not supported"):
        parse(arrays(**{name: np.ones((1, 1), np.int32)}), Collected(), FACTS)


def test_what_is_asked_for_arrives() -> None:
    """Words, whose ids lie back to back, lengths and choices end up in the job; features are cut to
    input_lengths.
    """
    words = np.array([[[1, 2, 3, -1], [1, 3, -1, -1]]], np.int32)
    job = parse(
        arrays(
            bad_words_list=words,
            input_lengths=np.array([60], np.int32),
            beam_width=np.array([4], np.int32),
            num_return_sequences=np.array([2], np.int32),
        ),
        Collected(),
        FACTS,
    )
    assert job.sampling.bad_words == ((1,), (2, 3))
    assert job.source is not None
    assert job.source.shape == (60, 80)
    assert (job.sampling.beam_width, job.sequences) == (4, 2)


def test_stop_names_a_request() -> None:
    """stop=true without an id could mean anything."""
    assert not stops({}, "")
    assert not stops({"stop": np.array([False])}, "")
    assert stops({"stop": np.array([True])}, "a")
    with pytest.raises(BadRequest, match="id of the request"):
        stops({"stop": np.array([True])}, "")


def test_what_does_not_fit_behind_the_prompt_is_not_asked_for() -> None:
    """As TensorRT-LLM clamps max_new_tokens."""
    job = parse(arrays(request_output_len=np.array([100_000], np.int32)), Collected(), FACTS)
    assert job.sampling.max_tokens == FACTS.positions - 2


def test_samples_are_filled_with_silence() -> None:
    """Up to the frames that the request names."""
    sent = arrays(
        encoder_input_features=None,
        audio_samples=np.ones((1, 200), np.float32),
        input_lengths=np.array([[4]], np.int32),
    )
    job = parse(sent, Collected(), LISTENS)
    assert job.source is not None
    assert job.source.dtype == np.float32
    assert job.source.tolist() == [1.0] * 200 + [0.0] * 440


@pytest.mark.parametrize(
    ("samples", "frames", "facts", "says"),
    [
        ([0.0] * 200, 4, FACTS, "not supported by this engine"),
        ([0.0] * 200, 3, LISTENS, "even number of frames"),
        ([0.0] * 641, 4, LISTENS, "641 samples for 4 frames"),
        ([], 4, LISTENS, "0 samples"),
        ([0.0], 3002, LISTENS, "input_lengths is 3002"),
        ([0.0], None, LISTENS, "input_lengths is 0"),
        ([np.nan] * 200, 4, LISTENS, "NaN or infinite"),
    ],
)
def test_samples_that_are_refused(
    samples: list[float], frames: int | None, facts: EngineFacts, says: str
) -> None:
    """By name."""
    lengths = None if frames is None else np.array([[frames]], np.int32)
    sent = arrays(
        encoder_input_features=None, audio_samples=np.array([samples], np.float32), input_lengths=lengths
    )
    with pytest.raises(BadRequest, match=says):
        parse(sent, Collected(), facts)


LOOKS = EngineFacts("llava", 128, 300, 1, prompt_width=64)
TABLE: dict[str, Any] = {
    "input_ids": np.array([[300, 301, 302, 303, 5]], np.int32),
    "request_output_len": np.array([[4]], np.int32),
    "prompt_embedding_table": np.ones((1, 4, 64), np.float16),
    "prompt_vocab_size": np.array([[4]], np.int32),
}


def test_a_table_goes_into_the_job_and_stops_nothing() -> None:
    job = parse(TABLE, Collected(), LOOKS)
    np.testing.assert_array_equal(job.table, TABLE["prompt_embedding_table"][0])
    assert job.stopped is False


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"prompt_embedding_table": np.zeros((1, 4, 63), np.float16)}, r"\[4, 63\]; this model takes"),
        ({"prompt_embedding_table": np.full((1, 4, 64), np.nan, np.float16)}, "NaN or infinite"),
        ({"prompt_embedding_table": np.zeros((1, 3000, 64), np.float16)}, "3000 rows"),
        ({"prompt_vocab_size": np.array([[5]], np.int32)}, "prompt_vocab_size is 5; it must be from 1 to 4"),
        ({"prompt_vocab_size": np.array([[3]], np.int32)}, "outside 0 to 302"),
        ({"prompt_table_extra_ids": np.ones((1, 3), np.uint64)}, "3 values, input_ids 5"),
        ({"prompt_embedding_table": np.zeros((1, 0, 64), np.float16)}, "requires prompt_embedding_table"),
    ],
)
def test_what_fits_no_table_is_refused(changed: dict[str, Any], says: str) -> None:
    """A table of another width, too long, not finite, or with fewer rows than ids name."""
    with pytest.raises(BadRequest, match=says):
        parse(TABLE | changed, Collected(), LOOKS)
