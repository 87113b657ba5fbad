"""The embeddings route of the gateway, with a Triton that counts."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fastapi.testclient import TestClient
from hypothesis import given
from hypothesis import strategies as st

from conch.deployment import Pool
from conch.errors import ApiError
from gateway.embeddings.embedder import INPUTS, TOKENS, parts
from gateway.embeddings.schema import MOST_INPUTS

from .application import application, linked, refuses

MINILM = Pool("mini", "minilm", (0,), capabilities=frozenset({"embedding"}), positions=8, dimensions=2)


class FakeTriton:
    """Like `minilm`: a vector is the length of a text and the sum of its bytes or ids; a token is a byte."""

    def __init__(self) -> None:
        self.sizes: list[int] = []
        self.error: Exception | None = None

    async def close(self) -> None: ...

    async def infer(
        self, pool: Any, model: str, arrays: Mapping[str, np.ndarray], outputs: list[str], request_id: str
    ) -> dict[str, np.ndarray]:
        assert model == "minilm"
        assert arrays["truncate"].all()
        if self.error:
            raise self.error
        if "text" in arrays:
            rows = [list(text) for text in arrays["text"].ravel()]
        else:
            lengths = arrays["input_lengths"].ravel()
            rows = [row[:n].tolist() for row, n in zip(arrays["input_ids"], lengths, strict=True)]
        self.sizes.append(len(rows))
        return {
            "embedding": np.array([[len(row), sum(row)] for row in rows], np.float32),
            "input_length": np.array([[len(row)] for row in rows], np.int32),
        }


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[tuple[TestClient, FakeTriton]]:
    other = Pool("text", "gpt2", (0,), capabilities=frozenset({"completion"}), positions=8)
    fake = FakeTriton()
    with application(tmp_path, MINILM, other, triton=fake, embeddings_per_instance=2) as client:
        yield client, fake


def post(opened: tuple[TestClient, FakeTriton], given_input: Any, **fields: Any) -> Any:
    return opened[0].post("/v1/embeddings", json={"model": "mini", "input": given_input, **fields})


@pytest.mark.parametrize(
    ("given_input", "vectors"),
    [
        ("abc", [[3, 294]]),
        (["b", "abc", "a"], [[1, 98], [3, 294], [1, 97]]),
        ([5, 6], [[2, 11]]),
        ([[7], [1, 2, 3]], [[1, 7], [3, 6]]),
    ],
)
def test_every_form_of_input(opened: Any, given_input: Any, vectors: list[list[float]]) -> None:
    fields = {} if "a" in str(given_input) else {"token_ids": "model"}
    body = post(opened, given_input, **fields).json()
    assert [row["embedding"] for row in body["data"]] == vectors
    assert [row["index"] for row in body["data"]] == list(range(len(vectors)))
    count = int(sum(vector[0] for vector in vectors))
    assert body["usage"] == {"prompt_tokens": count, "total_tokens": count}
    assert (body["object"], body["model"]) == ("list", "mini")


@pytest.mark.parametrize("ids", [[5, 6], [[7], [1, 2, 3]]])
def test_token_ids_are_never_taken_for_other_words(opened: Any, ids: Any) -> None:
    """Clients make them with OpenAI's tokenizers."""
    refuses(post(opened, ids), "input", "check_embedding_ctx_length=False")


def test_base64_is_of_little_endian_float32(opened: Any) -> None:
    body = post(opened, ["ab"], encoding_format="base64", dimensions=2).json()
    assert np.frombuffer(base64.b64decode(body["data"][0]["embedding"]), "<f4").tolist() == [2, 195]


def test_many_inputs_keep_their_order(opened: Any) -> None:
    """As many as OpenAI takes, in requests of some each."""
    texts = ["x" * (n % 8 + 1) for n in range(MOST_INPUTS)]
    body = post(opened, texts).json()
    assert [row["embedding"][0] for row in body["data"]] == [len(text) for text in texts]
    assert sum(opened[1].sizes) == MOST_INPUTS
    assert max(opened[1].sizes) == INPUTS


def test_what_is_too_long(opened: Any) -> None:
    """Named by its place in the whole request; cut where that is asked for, and counted so."""
    texts = [*["a"] * 70, "b" * 9, "b" * 12]
    refuses(post(opened, texts), "input", "input [70] has 9 tokens; mini reads 8 at most")
    assert post(opened, texts, truncate=True).json()["usage"]["prompt_tokens"] == 70 + 8 + 8
    assert post(opened, texts, truncate="END", input_type="query").status_code == 200
    assert post(opened, texts, truncate="NONE").status_code == 400
    opened[0].app_state["services"].settings.embeddings_truncate = True
    assert post(opened, texts).status_code == 200
    assert post(opened, texts, truncate=False).status_code == 400


@pytest.mark.parametrize(
    ("fields", "param", "sentence"),
    [
        ({"input": ""}, "input", "is empty"),
        ({"input": []}, "input", "is empty"),
        ({"input": ["a", ""]}, "input", "input [1] is empty"),
        ({"input": [[1], []]}, "input", "input [1] is empty"),
        ({"input": ["a"] * (MOST_INPUTS + 1)}, "input", "send at most 2048"),
        ({"input": "a", "dimensions": 1}, "dimensions", "omit it"),
        ({"input": "a", "encoding_format": "int8"}, "encoding_format", ""),
        ({"input": [True]}, "input", ""),
        ({"input": [-1]}, "input", ""),
        ({"input": [2**31]}, "input", ""),
        ({"input": ["a", [1]]}, "input", ""),
        ({"input": "\ud800"}, "input", ""),
        ({"input": {"text": "a"}}, "input", ""),
        ({"input": "a", "model": "text"}, "model", "does not support embedding"),
        ({"input": "a", "pooling": "max"}, "pooling", ""),
    ],
)
def test_what_is_refused(opened: Any, fields: dict[str, Any], param: str, sentence: str) -> None:
    content = json.dumps({"model": "mini", **fields})
    answer = opened[0].post("/v1/embeddings", content=content, headers={"content-type": "application/json"})
    refuses(answer, param, sentence)
    assert not opened[1].sizes


def test_a_refusal_of_the_model_is_about_the_input(opened: Any) -> None:
    opened[1].error = ApiError(400, "input_ids must be from 0 to 9", code="model_refused")
    error = post(opened, [[11]], token_ids="model").json()["error"]
    assert (error["param"], error["code"]) == ("input", "invalid_value")
    opened[1].error = ApiError(503, "busy", code="unavailable", retry_after=2)
    assert post(opened, ["a"] * 100).status_code == 503
    assert not opened[0].app_state["services"].embeddings.inside["mini"]


@given(
    st.lists(st.one_of(st.text(min_size=1, max_size=9), st.lists(st.integers(0, 9), min_size=1)), min_size=1)
)
def test_parts_hold_every_input_once(items: list[Any]) -> None:
    found = list(parts(items))
    assert sorted(number for part in found for number in part) == list(range(len(items)))
    for part in found:
        assert len(part) <= INPUTS
        assert len({isinstance(items[number], str) for number in part}) == 1


def test_long_lists_of_ids_are_parted() -> None:
    found = list(parts([[1] * 10_000] * 10))
    assert all(len(part) * 10_000 <= TOKENS for part in found)


# Pictures


class Seeing(FakeTriton):
    """Like `clip_text` and `clip_image`: a picture's vector is its number of bytes and their sum."""

    async def infer(
        self, pool: Any, model: str, arrays: Mapping[str, np.ndarray], outputs: list[str], request_id: str
    ) -> dict[str, np.ndarray]:
        if model == "clip_text":
            return await super().infer(pool, "minilm", arrays, outputs, request_id)
        assert model == "clip_image"
        (data,) = arrays["image_bytes"]
        if data[0] == 0:
            raise ApiError(400, "image 0 is not a picture", code="model_refused")
        self.sizes.append(1)
        return {"embedding": np.array([[len(data), data.sum()]], np.float32)}


@pytest.fixture
def seeing(tmp_path: Path) -> Iterator[tuple[TestClient, FakeTriton]]:
    """A CLIP named `mini`, and `plain`, which reads text alone."""
    able = frozenset({"embedding", "picture_embedding"})
    pool = Pool("mini", "clip", (0,), capabilities=able, positions=8, dimensions=2)
    plain = replace(MINILM, model_id="plain")
    fake = Seeing()
    with application(tmp_path, pool, plain, triton=fake, max_pictures_bytes=5000) as client:
        yield client, fake


MINI = ("model", (None, "mini"))


def picture(*data: int) -> dict[str, Any]:
    return linked("data:image/png;base64," + base64.b64encode(bytes(data)).decode(), detail="auto")


def test_pictures_and_texts_in_their_order(seeing: Any) -> None:
    """Each picture is a request of its own; only texts have tokens."""
    given_input = [picture(1, 2), "ab", picture(3), {"type": "text", "text": "abc"}]
    body = post(seeing, given_input).json()
    assert [row["embedding"] for row in body["data"]] == [[2, 3], [2, 195], [1, 3], [3, 294]]
    assert body["usage"]["prompt_tokens"] == 5
    assert sorted(seeing[1].sizes) == [1, 1, 2]
    assert [row["embedding"] for row in post(seeing, [picture(9)] * 40).json()["data"]] == [[1, 9]] * 40


@pytest.mark.parametrize(
    ("given_input", "sentence"),
    [
        (["a", picture(0)], "input [1] is not a picture"),
        ([picture()], "input [0] is empty"),
        ([linked("http://host/a.png")], "input [0] is a remote URL"),
        ([linked(" data:;base64,AA")], "input [0] is not a base64"),
        ([linked(f"data:{'a' * 300};base64,AA")], "is not a base64 data URL"),
        ([linked("data:;base64,A")], "input [0]: its data URL is not"),
        ([linked("data:;base64,====")], "input [0]"),
        ([linked("data:;base64,AAAA", detail="huge")], "detail must be"),
        ([{"type": "image_url", "image_url": "data:;base64,AAAA"}], "input[0].image_url must be"),
        ([{"type": "audio"}], "input[0] must be a text, or an object whose type is text or image_url"),
        ([{"type": ["text"]}], "input[0] must be a text, or an object whose type is"),
        ([{"type": "text", "text": ""}], "input [0] is empty"),
        ([{"type": "text", "text": "a" * 9}], "input [0] has 9 tokens"),
        ([picture(1), 7], "input[1] must be a valid string"),
        (picture(1), "input must be a text or a list"),
    ],
)
def test_pictures_that_are_refused(seeing: Any, given_input: Any, sentence: str) -> None:
    refuses(post(seeing, given_input), "input", sentence)


def test_a_text_model_refuses_pictures(seeing: Any) -> None:
    body = {"model": "plain", "input": ["a", picture(1)]}
    answer = seeing[0].post("/v1/embeddings", json=body)
    refuses(answer, "input", "input [1] is a picture; plain takes text only")
    assert not seeing[1].sizes


def test_forms(seeing: Any) -> None:
    """Inputs in the order of the form, under either name; other fields as in JSON."""
    form = [
        ("input", (None, "ab")),
        MINI,
        ("file", ("a.png", b"\1\2", "image/png")),
        ("dimensions", (None, "2")),
        ("input", ("b.png", b"\3", "image/png")),
    ]
    body = seeing[0].post("/v1/embeddings", files=form).json()
    assert [row["embedding"] for row in body["data"]] == [[2, 195], [2, 3], [1, 3]]


@pytest.mark.parametrize(
    ("form", "status", "param", "sentence"),
    [
        ([MINI], 400, "input", "is empty"),
        ([("input", (None, "a"))], 400, "model", "is missing"),
        ([MINI, ("file", ("a", b""))], 400, "input", "input [0] is empty"),
        ([MINI, ("file", ("a", b"\0"))], 400, "input", "input [0] is not a picture"),
        ([("model", (None, "plain")), ("file", ("a", b"\1"))], 400, "input", "input [0] is a picture"),
        ([("model", ("a", b"mini")), ("input", (None, "a"))], 400, "model", "model is a file"),
        ([MINI] * 2, 400, "model", "twice"),
        ([MINI, ("user", (None, "a")), ("pool", (None, "b"))], 400, "pool", "unknown field"),
        ([MINI, ("file", ("a", b"\1" * 6000))], 413, "input", "exceeds 5000 bytes"),
    ],
)
def test_forms_that_are_refused(seeing: Any, form: Any, status: int, param: str, sentence: str) -> None:
    refuses(seeing[0].post("/v1/embeddings", files=form), param, sentence, status)


@pytest.mark.parametrize(
    ("kind", "content"),
    [
        ("multipart/form-data", b"--x\r\n"),
        ("multipart/form-data; boundary=x", b""),
        ("multipart/form-data; boundary=x", b"nothing of the kind"),
        ("multipart/form-data; boundary=x", b'--x\r\nContent-Disposition: form-data; name="input"\r\n\r\nab'),
        ("multipart/form-data; boundary=x", b"--x\r\nno header\r\n\r\nab\r\n--x--\r\n"),
        ("multipart/form-data; boundary=x", b"--x\r\n\r\nab\r\n--x--\r\n"),
    ],
)
def test_broken_forms(seeing: Any, kind: str, content: bytes) -> None:
    refuses(seeing[0].post("/v1/embeddings", content=content, headers={"content-type": kind}), "input")
