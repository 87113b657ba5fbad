"""Texts to vectors: the engine compared with transformers on the same weights, what is read, and what is
refused.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import BertConfig, BertModel

from build.pictures import Unsupported
from conch.bundle import ENGINE
from serving.engine.encoding import ENOUGH, MOST, PADDING, TextEncoderEndpoint, embed, groups
from serving.errors import BadRequest
from serving.text.embedding import EmbeddingModel, around, with_mask
from tests.fakes.triton_python import UTILS, Answered, answers_of, request

from ..engines import encoder_of, export

pytestmark = pytest.mark.slow  # imports torch and transformers

WORDS = ["[PAD]", "[CLS]", "[SEP]", "[UNK]", *"abcdefghij"]
MODULES = ("Transformer", "Pooling", "Normalize")


def checkpoint(folder: Path, pooling: str = "mean_tokens", longest: int | None = 12, **config: Any) -> Path:
    """A random BERT in sentence-transformers' layout."""
    torch.manual_seed(7)
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 32}
    shape = BertConfig(
        vocab_size=len(WORDS), max_position_embeddings=20, initializer_range=0.5, **{**sizes, **config}
    )
    BertModel(shape, add_pooling_layer=False).save_pretrained(folder)
    (folder / "1_Pooling").mkdir()
    modes = {f"pooling_mode_{name}": name == pooling for name in ("cls_token", "mean_tokens", "max_tokens")}
    written = {
        "1_Pooling/config.json": {"word_embedding_dimension": 16, **modes},
        "modules.json": [{"type": f"sentence_transformers.models.{name}"} for name in MODULES],
        "sentence_bert_config.json": {"max_seq_length": longest},
    }
    for name, content in written.items():
        (folder / name).write_text(json.dumps(content), "utf-8")
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 2), ("[CLS]", 1))
    tokenizer.enable_truncation(5)
    tokenizer.enable_padding(length=9)
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


@pytest.fixture(scope="module", params=["mean_tokens", "cls_token"])
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, str]:
    """A checkpoint, its bundle, and how it pools."""
    folder = checkpoint(tmp_path_factory.mktemp("weights"), request.param)
    bundle = tmp_path_factory.mktemp("bundle")
    (bundle / ENGINE).mkdir()
    export("openvino", "minilm", folder, bundle / ENGINE)
    return folder, bundle, request.param


@pytest.mark.parametrize("target", ["openvino", "torch"])
def test_vectors_are_transformers(made: tuple[Path, Path, str], target: str, tmp_path: Path) -> None:
    """Rows of different lengths, computed together and alone."""
    folder, bundle, pooling = made
    theirs = BertModel.from_pretrained(folder, add_pooling_layer=False).eval()
    if target == "torch":
        export("torch", "minilm", folder, tmp_path)
    encoder = encoder_of(target, tmp_path if target == "torch" else bundle / ENGINE)
    draw = np.random.default_rng(1)
    rows = [draw.integers(4, len(WORDS), n).astype(np.int32) for n in (1, 12, 3, 7, 7, 2)]
    found = embed(encoder, rows)
    for row, vector in zip(rows, found, strict=True):
        with torch.no_grad():
            hidden = theirs(torch.from_numpy(row[None].astype(np.int64))).last_hidden_state[0]
        pooled = hidden[0] if pooling == "cls_token" else hidden.mean(0)
        expected = torch.nn.functional.normalize(pooled, dim=0).numpy()
        np.testing.assert_allclose(vector, expected, atol=2e-5)
        np.testing.assert_allclose(embed(encoder, [row])[0], expected, atol=2e-5)


@pytest.mark.parametrize(
    ("longest", "trained", "positions"), [(0, 12, 12), (0, None, 20), (15, 12, 15), (99, 12, 20)]
)
def test_the_longest_text(tmp_path: Path, longest: int, trained: int | None, positions: int) -> None:
    """What the model was trained for, unless the catalog asks for another length that it has."""
    (tmp_path / "out").mkdir()
    export(
        "openvino",
        "minilm",
        checkpoint(tmp_path / "in", longest=trained),
        tmp_path / "out",
        "--compress",
        "int8",
        "--max-input-len",
        str(longest),
    )
    assert json.loads((tmp_path / "out" / "engine.json").read_text())["positions"] == positions


def test_other_checkpoints_are_refused(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with pytest.raises(Unsupported, match="pooling_mode_max_tokens; this family"):
        export("openvino", "minilm", checkpoint(tmp_path / "a", "max_tokens"), out)
    with pytest.raises(Unsupported, match="bert, relu, absolute; this family"):
        export("openvino", "minilm", checkpoint(tmp_path / "b", hidden_act="relu"), out)
    folder = checkpoint(tmp_path / "c")
    (folder / "modules.json").write_text('[{"type": "a.Transformer"}, {"type": "a.Dense"}]')
    with pytest.raises(Unsupported, match=r"modules\.json has the modules Transformer, Dense"):
        export("openvino", "minilm", folder, out)


def rows_of(model: EmbeddingModel, **inputs: Any) -> tuple[list[list[int]], list[int]]:
    """The ids that the encoder is asked for, and the lengths that are reported."""
    seen: list[list[int]] = []

    def encode(arrays: Mapping[str, np.ndarray]) -> np.ndarray:
        pairs = zip(arrays["input_ids"], arrays["attention_mask"], strict=True)
        seen.extend(row[mask == 1].tolist() for row, mask in pairs)
        return np.zeros((len(seen), 16), np.float32)

    given_arrays = {name: np.array(value) for name, value in inputs.items()}
    found = model.embed(given_arrays, encode)
    return seen, found["input_length"][:, 0].tolist()


def test_what_is_read(made: tuple[Path, Path, str]) -> None:
    """Texts, and ids that stand for the same; the tokenizer file's own cutting and padding do not count."""
    model = EmbeddingModel(made[1])
    assert around(model.tokenizer) == ([1], [2])
    texts = np.array([[b"a b c"], [b"a b c d e f g"], [b""]], object)
    expected = [[1, 4, 5, 6, 2], [1, *range(4, 11), 2], [1, 2]]
    assert rows_of(model, text=texts) == (expected, [5, 9, 2])
    ids = [[4, 5, 6, 0], [4, 5, 6, 7]]
    assert rows_of(model, input_ids=ids, input_lengths=[[3], [4]])[0] == [[1, 4, 5, 6, 2], [1, 4, 5, 6, 7, 2]]


def test_what_is_too_long(made: tuple[Path, Path, str]) -> None:
    """Refused, or cut as the tokenizer cuts; the whole length is reported."""
    model = EmbeddingModel(made[1])
    long = np.array([[b"a"], [b"a " * 30]], object)
    with pytest.raises(BadRequest, match="text 1 has 32 tokens; this model reads 12 at most"):
        rows_of(model, text=long)
    assert rows_of(model, text=long, truncate=[[True], [True]]) == ([[1, 4, 2], [1, *[4] * 10, 2]], [3, 32])


@pytest.mark.parametrize(
    ("inputs", "sentence"),
    [
        ({}, "send either text or input_ids"),
        ({"text": np.array([[b"a"]], object), "input_ids": [[4]]}, "send either text or input_ids"),
        ({"input_ids": [[14]]}, "must be from 0 to 13"),
        ({"input_ids": [[-1]]}, "must be from 0 to 13"),
        ({"input_ids": [[4]], "input_lengths": [[2]]}, "input_lengths must be from 1 to 1"),
        ({"input_ids": [[4]], "input_lengths": [[0]]}, "input_lengths must be from 1 to 1"),
        ({"text": np.array([[b"\xff"]], object)}, "not valid UTF-8"),
    ],
)
def test_what_is_refused(made: tuple[Path, Path, str], inputs: dict[str, Any], sentence: str) -> None:
    with pytest.raises(BadRequest, match=sentence):
        rows_of(EmbeddingModel(made[1]), **inputs)


@given(st.lists(st.integers(1, 512), min_size=1, max_size=200))
def test_groups_hold_every_row_once(lengths: list[int]) -> None:
    """Small groups may be uneven, large ones are not, and none is larger than memory bears."""
    found = list(groups(lengths))
    assert sorted(row for group in found for row in group) == list(range(len(lengths)))
    for group in found:
        longest = lengths[group[0]]
        assert longest * len(group) <= MOST or len(group) == 1
        small = ENOUGH // longest + 1
        assert all(lengths[row] >= PADDING * longest for row in group[small:])


def asked(**arrays: Any) -> Any:
    return request(**{name: np.array(array, np.int32) for name, array in arrays.items()})


class Counting:
    """An encoder whose vectors are the sums of ids."""

    facts = SimpleNamespace(positions=6, vocabulary=10, pad_id=0, dimensions=1)
    tokens_at_once = 4096

    def encode(self, ids: np.ndarray, mask: np.ndarray) -> np.ndarray:
        return (ids * mask).sum(1, keepdims=True).astype(np.float32)


def test_requests_are_computed_together_and_answered_apart() -> None:
    """A bad one among them is refused alone."""
    endpoint = TextEncoderEndpoint(Counting(), UTILS)  # type: ignore[arg-type]
    good = with_mask([[1, 2], [3, 4, 5]])
    answers = answers_of(
        endpoint,
        [
            asked(**good),
            asked(input_ids=[[1, 2]], attention_mask=[[0, 1]]),
            asked(input_ids=[[1, 2]], attention_mask=[[1]]),
            asked(input_ids=[[1, 11]], attention_mask=[[1, 1]]),
            asked(input_ids=[[1] * 7], attention_mask=[[1] * 7]),
            asked(input_ids=[[9]], attention_mask=[[1]]),
            asked(attention_mask=[[1]]),
        ],
    )
    assert [answers[n].arrays["embedding"].tolist() for n in (0, 5)] == [[[3], [12]], [[9]]]
    sentences = [answer.error.message for answer in answers[1:5]]
    assert [text.split()[1] for text in sentences] == ["attention_mask", "attention_mask", "input_ids", "a"]
    assert all(text.startswith("INVALID_ARG: ") for text in sentences)
    assert answers[6].error.message == "INTERNAL: 'input_ids'"


def test_a_response_that_cannot_be_sent_is_an_error() -> None:
    """As where shared memory is full; the encoder goes on."""

    class Full(Answered):
        def send(self, response: Any, flags: int) -> None:
            if response.error is None:
                raise MemoryError("shared memory")
            super().send(response, flags)

    endpoint = TextEncoderEndpoint(Counting(), UTILS)  # type: ignore[arg-type]
    (one, other), sender = [asked(**with_mask([[1, 2]])) for _ in range(2)], Full()
    one.get_response_sender = lambda: sender
    endpoint.execute([one])
    assert sender.response.result(10).error.message == "INTERNAL: shared memory"
    assert answers_of(endpoint, [other])[0].arrays["embedding"].tolist() == [[3]]
