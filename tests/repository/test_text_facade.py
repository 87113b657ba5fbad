"""The text façades against a double that offers exactly the contract's tensors, no more."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from conch.bundle import EngineFacts
from serving.errors import BadRequest
from serving.text.facade import ENGINE_OUTPUTS, complete
from serving.text.model import TextModel
from serving.text.processing import postprocess

from .engine_contract import OUTPUTS, check

MINIATURES = Path(__file__).parent.parent.parent / "miniatures"
FACTS: dict[str, dict[str, Any]] = {
    "t5": {"encoder_positions": 64, "end_id": 1, "pad_id": 0, "decoder_start": [0]},
    "bart": {"encoder_positions": 64, "end_id": 2, "pad_id": 1, "decoder_start": [2, 0]},
    "gpt2": {"end_id": 1999, "pad_id": 1999},
}
ANSWER = "the old town."


@dataclass
class Double:
    """Takes only tensors of the contract, of their dtypes and shapes; every row answers ANSWER, in beams of
    growing length.
    """

    tokens: list[int]
    size: int
    calls: list[dict[str, NDArray[Any]]] = field(default_factory=list)

    def __call__(self, arrays: dict[str, NDArray[Any]], streaming: bool) -> Iterator[dict[str, NDArray[Any]]]:
        check(arrays)
        self.calls.append(arrays)
        rows = len(arrays["input_ids"])
        beams = int(arrays["beam_width"].flat[0]) if "beam_width" in arrays else 1
        if not streaming:
            yield self._answer(arrays, self.tokens, rows, beams)
        elif beams == 1:
            for token in self.tokens:
                yield self._answer(arrays, [token], rows, 1)
        else:
            for n in range(len(self.tokens)):
                yield self._answer(arrays, self.tokens[: n + 1], rows, beams, n + 1)

    def _answer(
        self, arrays: dict[str, NDArray[Any]], tokens: list[int], rows: int, beams: int, count: int = 0
    ) -> dict[str, NDArray[Any]]:
        found = {
            "output_ids": np.tile(np.array(tokens, np.int32), (rows, beams, 1)),
            "sequence_length": np.full((rows, beams), len(tokens), np.int32),
        }
        if "return_log_probs" in arrays:
            found |= {
                "output_log_probs": np.full((rows, beams, len(tokens)), -0.5, np.float32),
                "cum_log_probs": np.full((rows, beams), -1.0, np.float32),
            }
        if "return_generation_logits" in arrays:
            # One step more than tokens, for the end, and a vocabulary filled up with what must never be
            # chosen.
            logits = np.zeros((rows, beams, len(tokens) + 1, self.size + 3), np.float32)
            logits[..., self.size :] = 50.0
            for n, token in enumerate(tokens):
                logits[:, :, n, token] = 9.0
            found["generation_logits"] = logits
        assert set(found) <= OUTPUTS
        return found


Facade = tuple[TextModel, Double]


@pytest.fixture(params=list(FACTS))
def facade(request: pytest.FixtureRequest, tmp_path: Path) -> Facade:
    """A bundle's facts and tokenizer, without an engine."""
    return model(request.param, tmp_path)


def model(name: str, folder: Path, **parameters: Any) -> Facade:
    (folder / "engine").mkdir()
    shutil.copy(MINIATURES / name / "tokenizer.json", folder / "engine")
    EngineFacts(family=name, positions=64, vocabulary=2000, **FACTS[name]).save(folder / "engine")
    (folder / "parameters.json").write_text(json.dumps(parameters))
    text = TextModel.load(folder)
    return text, Double(text.tokenizer.ids(ANSWER, special=False), 2000)


def strings(*rows: list[str]) -> NDArray[Any]:
    return np.array([[word.encode() for word in row] for row in rows], object)


def ask(facade: Facade, rows: int = 1, **inputs: Any) -> list[dict[str, Any]]:
    """Numbers become a column of int32, others of their own type."""
    given = {"text_input": strings(*[["On Monday"]] * rows), "max_tokens": 20, **inputs}
    arrays = {
        name: value
        if isinstance(value, np.ndarray)
        else np.full((rows, 1), value, np.int32 if type(value) is int else None)
        for name, value in given.items()
    }
    return list(complete(facade[0], arrays, facade[1]))


def texts(results: list[dict[str, Any]]) -> list[str]:
    return [result["text_output"][0].decode() for result in results]


def test_every_engine_output_is_in_the_contract() -> None:
    assert set(ENGINE_OUTPUTS) <= OUTPUTS


def test_one_text(facade: Facade) -> None:
    """BART and T5 read with their end token and begin as they were trained; GPT-2 reads the words alone."""
    assert texts(ask(facade)) == [ANSWER]
    (call,) = facade[1].calls
    text = facade[0]
    assert call["input_ids"][0].tolist() == text.tokenizer.ids("On Monday")
    assert call["decoder_input_ids"][0].tolist() == text.start
    assert (call["end_id"].item(), call["pad_id"].item()) == (text.facts.end_id, text.facts.pad_id)
    assert "embedding_bias" not in call


def test_rows_of_different_lengths_and_words(facade: Facade) -> None:
    """One request; shorter rows are padded, word lists filled up with -1. A stop word that ends a row is cut
    off, as TensorRT-LLM does not.
    """
    text = facade[0]
    (result,) = ask(
        facade,
        2,
        text_input=strings(["On Monday the old mayor"], ["a"]),
        stop_words=strings(["town", "."], ["", ""]),
        bad_words=strings([""], ["the"]),
    )
    (call,) = facade[1].calls
    assert [text.decode() for text in result["text_output"]] == [ANSWER.removesuffix("."), ANSWER]
    assert result["num_output_tokens"].ravel().tolist() == [len(facade[1].tokens) - 1, len(facade[1].tokens)]
    assert (result["num_input_tokens"] == call["input_lengths"]).all()
    short = call["input_lengths"][1, 0]
    assert call["input_ids"].shape[1] == call["input_lengths"][0, 0] > short
    assert (call["input_ids"][1, short:] == text.facts.pad_id).all()
    for row, words in zip(call["stop_words_list"], (["town", "."], []), strict=True):
        assert (row[1] > 0).sum() == sum(len(text.tokenizer.spellings(word)) for word in words)


@pytest.mark.parametrize("word", ["e o", "ld t", "ld"])
def test_a_whole_text_ends_with_its_stop_word(facade: Facade, word: str) -> None:
    """However its tokens split the word: the engine's request is stopped, and no more tokens count."""
    inputs = {"text_input": strings(["On Monday"]), "max_tokens": np.array([[20]], np.int32)}
    stopped = list[bool]()
    (result,) = complete(
        facade[0], inputs | {"stop_words": strings([word])}, facade[1], stop=lambda: stopped.append(True)
    )
    (whole,) = complete(facade[0], inputs, facade[1])
    text = result["text_output"].item().decode()
    assert word in text and ANSWER.startswith(text.strip())
    assert stopped and result["num_output_tokens"] < whole["num_output_tokens"]
    (other,) = complete(
        facade[0], inputs | {"stop_words": strings(["zz"])}, facade[1], stop=lambda: stopped.append(True)
    )
    assert other["text_output"] == whole["text_output"] and len(stopped) == 1


def test_stream_gives_what_is_new_or_the_text_so_far(facade: Facade) -> None:
    """Also where the bundle says so and the request does not."""
    assert "".join(found := texts(ask(facade, stream=True))) == ANSWER
    assert len(found) > 2
    so_far = texts(ask(facade, stream=True, accumulate_tokens=True))
    assert so_far[-1] == ANSWER
    assert all(ANSWER.startswith(text) for text in so_far)
    bundle = replace(facade[0], accumulate=True), facade[1]
    assert texts(ask(bundle, stream=True)) == so_far


def test_a_stream_counts_its_tokens(facade: Facade) -> None:
    """From the beginning of the text."""
    results = ask(facade, stream=True)
    assert [result["num_output_tokens"].item() for result in results] == list(
        range(1, len(facade[1].tokens) + 1)
    )


def test_a_stream_of_beams_gives_the_texts_so_far(facade: Facade) -> None:
    results = ask(facade, stream=True, beam_width=3, num_return_sequences=3)
    assert [result["text_output"].shape for result in results] == [(3,)] * len(facade[1].tokens)
    assert results[-1]["text_output"][2].decode() == ANSWER


def test_special_tokens_show_in_streams_as_in_texts(tmp_path: Path) -> None:
    """skip_special_tokens=false holds for both."""
    text, double = model("t5", tmp_path, skip_special_tokens=False)
    double.tokens.append(text.facts.end_id)
    whole = texts(ask((text, double)))
    assert whole[0].endswith("</s>")
    assert ["".join(texts(ask((text, double), stream=True)))] == whole


@pytest.mark.parametrize("streaming", [False, True])
def test_likeliest_tokens(facade: Facade, streaming: bool) -> None:
    """The chosen token leads; what fills an engine's vocabulary up takes no part. Logits that nobody asked
    for are not sent on.
    """
    results = ask(facade, top_log_probs=2, stream=streaming)
    chosen = [name for result in results for name in result["output_tokens"][0, 0].tolist()]
    tops = [tuple(row) for result in results for row in result["top_tokens"][0, 0].tolist()]
    probs = np.concatenate([result["top_token_log_probs"][0, 0] for result in results])
    assert (
        [top[0] for top in tops]
        == chosen
        == [facade[0].tokenizer.piece(i).encode() for i in facade[1].tokens]
    )
    assert (probs[:, 0] > np.log(0.5)).all()
    assert all("generation_logits" not in result for result in results)


class TensorRT(Double):
    """Figures as TensorRT-LLM gives them (`build/targets/trtllm/facts.py`, FIGURES): log probabilities that a
    temperature has pushed to 0, logits [1, tokens, beams, vocabulary] in a stream, and without one those of
    every token that was allowed.
    """

    def _answer(
        self, arrays: dict[str, NDArray[Any]], tokens: list[int], rows: int, beams: int, count: int = 0
    ) -> dict[str, NDArray[Any]]:
        found = super()._answer(arrays, tokens, rows, beams, count)
        if "output_log_probs" in found:
            found["output_log_probs"][:] = 0.0
        if "generation_logits" in found and "streaming" in arrays:
            found["generation_logits"] = found["generation_logits"][:, :, : len(tokens)].swapaxes(1, 2)
        elif "generation_logits" in found:
            allowed = int(arrays["request_output_len"].max())
            full = np.zeros((rows, beams, allowed, self.size + 3), np.float32)
            found["generation_logits"] = full
        return found


def tensorrt(facade: Facade) -> Facade:
    """The façade of a bundle of TensorRT-LLM's, and such an engine."""
    facts = replace(facade[0].facts, tempered_log_probs=True, full_logits=True)
    return replace(facade[0], facts=facts), TensorRT(facade[1].tokens, facade[1].size)


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("top", [0, 2])
def test_log_probs_are_the_models_own_on_tensorrt_llm(facade: Facade, streaming: bool, top: int) -> None:
    """At any temperature, made from logits that a stream brings token by token; they are not those of the end
    nor of the filled-up ids.
    """
    own = tensorrt(facade)
    results = ask(own, top_log_probs=top, temperature=np.float32(0.2), stream=streaming)
    probs = np.concatenate([result["output_log_probs"].ravel() for result in results])
    assert np.allclose(probs, 9 - np.log(np.exp(9) + own[0].facts.vocabulary - 1), atol=1e-5)
    assert len(probs) == len(own[1].tokens)
    assert "".join(texts(results)) == ANSWER
    assert results[-1]["num_output_tokens"].item() == len(own[1].tokens)
    assert all("generation_logits" not in result for result in results)
    assert all(call["streaming"].all() for call in own[1].calls)
    if top:
        tops = np.concatenate([result["top_token_log_probs"].reshape(-1, top) for result in results])
        assert np.allclose(tops[:, 0], probs)


def test_rows_are_gathered_apart_on_tensorrt_llm(facade: Facade) -> None:
    """One stream for each row, since a stream has one; put together they are as one request's, each up to its
    own stop word.
    """
    own = tensorrt(facade)
    (result,) = ask(
        own,
        2,
        top_log_probs=1,
        stop_words=strings(["."], [""]),
        text_input=strings(["On Monday the old mayor"], ["a"]),
    )
    assert [text.decode() for text in result["text_output"]] == [ANSWER.removesuffix("."), ANSWER]
    assert result["output_lengths"].ravel().tolist() == [len(own[1].tokens) - 1, len(own[1].tokens)]
    assert result["top_token_log_probs"].shape == (2, 1, len(own[1].tokens), 1)
    assert [call["input_ids"].shape for call in own[1].calls] == [
        (1, int(n)) for n in result["num_input_tokens"].ravel()
    ]


@pytest.mark.parametrize("engine", [lambda facade: facade, tensorrt], ids=["portable", "TensorRT-LLM"])
def test_log_probs_without_likeliest_tokens_need_no_logits(
    facade: Facade, engine: Callable[[Facade], Facade]
) -> None:
    """At temperature 0, where nothing changes the engine's own figures."""
    own = engine(facade)
    (result,) = ask(own, top_log_probs=0)
    assert "top_tokens" not in result
    assert "return_generation_logits" not in own[1].calls[0]


def test_the_likeliest_tokens_of_a_prompt_are_not_made_up(tmp_path: Path) -> None:
    """A decoder alone may repeat its prompt; there are no logits for it."""
    gpt2 = model("gpt2", tmp_path)
    ask(gpt2, top_log_probs=1)
    assert gpt2[1].calls[0]["exclude_input_in_output"].all()
    with pytest.raises(BadRequest, match="exclude_input_in_output"):
        ask(gpt2, top_log_probs=1, exclude_input_in_output=False)


def test_bias_by_words_and_by_ids(facade: Facade) -> None:
    """They add up."""
    ids = facade[0].tokenizer.ids("town", special=False)
    ask(
        facade,
        embedding_bias_words=strings(["town"]),
        embedding_bias_weights=np.array([[2.0]], np.float32),
        logit_bias_ids=np.array([[ids[0], 7]], np.int32),
        logit_bias_weights=np.array([[1.0, -1.0]], np.float32),
    )
    bias = facade[1].calls[0]["embedding_bias"][0]
    assert (bias[ids[0]], bias[7]) == (3.0, -1.0)


def test_nothing_drafted_is_nothing_asked(facade: Facade) -> None:
    """Upstream's clients send the neutral values too."""
    assert texts(ask(facade, num_draft_tokens=0, use_draft_logits=False)) == [ANSWER]


@pytest.mark.parametrize(
    ("inputs", "says"),
    [
        ({"text_input": np.array([[b"\xff\xfe"]], object)}, "QUERY is not UTF-8"),
        ({"stop_words": np.array([[b"\xff"]], object)}, "STOP_WORDS_DICT is not UTF-8"),
        ({"text_input": strings(["word " * 100])}, "tokens"),
        ({"max_tokens": 0}, "max_tokens is 0"),
        ({"top_log_probs": 21}, "top_log_probs is 21"),
        ({"num_draft_tokens": 3}, "num_draft_tokens"),
        ({"num_return_sequences": 2}, "send one request for each text"),
        ({"rows": 2, "stream": True}, "a stream takes one text"),
        (
            {
                "logit_bias_ids": np.array([[2000]], np.int32),
                "logit_bias_weights": np.ones((1, 1), np.float32),
            },
            "logit_bias",
        ),
        ({"embedding_bias_words": strings(["a"])}, "embedding_bias_weights 0"),
        ({"image_input": np.zeros((1, 1), np.float16)}, "image_input"),
    ],
)
def test_refusals_name_the_input(facade: Facade, inputs: dict[str, Any], says: str) -> None:
    with pytest.raises(BadRequest, match=says):
        ask(facade, **inputs)
    assert not facade[1].calls


@pytest.mark.parametrize(
    ("tokens", "lengths"),
    [([[[5, -1]]], [[2]]), ([[[5, 6]]], [[-1]]), ([[[5, 6]]], [[2, 2]])],
    ids=["negative id", "negative length", "beams that differ"],
)
def test_postprocessing_refuses_what_no_engine_gives(facade: Facade, tokens: Any, lengths: Any) -> None:
    with pytest.raises(BadRequest, match="do not match"):
        postprocess(facade[0], np.array(tokens, np.int32), np.array(lengths, np.int32))
