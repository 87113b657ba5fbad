"""Embeddings with real weights: all-MiniLM-L6-v2 from the package index, asked by OpenAI's SDK, next to
sentence-transformers on the same weights.
"""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from pydoc_data.topics import topics
from typing import Any

import numpy as np
import pytest
import tritonclient.http as kserve
from openai import OpenAI

from .clients import tensors
from .conftest import ROOT, Stack
from .test_clip import CLOSE

MODEL = "all-minilm-l6-v2"
ODD = (
    "Grüße aus Köln!",
    "日本語の文章です。",
    "naïve café, ZAŻÓŁĆ gęślą jaźń",
    "a\u0301 is á; tabs\tand\nlines",
    "🎉🎉 emoji 👩‍👩‍👧",
    "   ",
    "supercalifragilisticexpialidocious" * 4,
)


def texts() -> list[str]:
    """Sentences and paragraphs of Python's own manual, and odd ones: 300 of up to some hundred tokens."""
    plain = " ".join(topics[name] for name in sorted(topics))
    sentences = [one.strip() for one in re.split(r"(?<=[.:])\s+", plain) if len(one.strip()) > 2]
    draw = np.random.default_rng(5)
    picked = [sentences[i] for i in draw.choice(len(sentences), 221, replace=False)]
    starts = draw.integers(0, len(plain) - 3000, 72)
    long = [plain[start : start + length] for start, length in zip(starts, range(20, 2900, 40), strict=True)]
    return [*picked, *long, *ODD]


@pytest.fixture(scope="module")
def stack(retrieval_stack: Stack) -> Stack:
    """Its first model."""
    return retrieval_stack


@pytest.fixture(scope="module")
def peer() -> Any:
    """Sentence-transformers on the weights that the build fetched."""
    from sentence_transformers import SentenceTransformer

    return SentenceTransformer(str(ROOT / "weights" / MODEL), device="cpu")


def embedded(client: OpenAI, given: Any, **fields: Any) -> np.ndarray:
    answer = client.embeddings.create(model=MODEL, input=given, **fields)
    return np.array([row.embedding for row in answer.data])


def test_vectors_are_sentence_transformers(client: OpenAI, peer: Any) -> None:
    """300 texts at once, those that are too long cut by both; and one by one they are the same."""
    asked = texts()
    assert len(asked) == 300
    found = embedded(client, asked, extra_body={"truncate": True})
    expected = peer.encode(asked, normalize_embeddings=True)
    cosines = (found * expected).sum(1)
    assert cosines.min() >= CLOSE, asked[int(cosines.argmin())]
    alone = np.concatenate([embedded(client, text, extra_body={"truncate": True}) for text in asked[::30]])
    assert (alone * expected[::30]).sum(1).min() >= CLOSE


def test_many_at_once(client: OpenAI, peer: Any) -> None:
    """The most that one request takes, and eight clients at once: every text has its own vector."""
    asked = [f"number {n} of many" for n in range(2048)]
    found = embedded(client, asked)
    expected = peer.encode(asked, normalize_embeddings=True, batch_size=256)
    assert (found * expected).sum(1).min() >= 0.999
    with ThreadPoolExecutor(8) as threads:
        apart = list(threads.map(lambda n: embedded(client, asked[n])[0], range(0, 2048, 16)))
    assert (np.array(apart) * expected[::16]).sum(1).min() >= 0.999


def test_both_models_answer_kserve_clients(stack: Stack, peer: Any) -> None:
    """The façade with texts, and the encoder with ids and mask, by Triton's own client."""
    client = kserve.InferenceServerClient(stack.kserve.removeprefix("http://"))
    text = tensors(kserve, text=np.array([[b"hello world"], [b"cats"]], object))
    facade = client.infer("minilm", text)
    assert facade.as_numpy("input_length").tolist() == [[4], [3]]
    coded = peer.tokenizer(["hello world", "cats"], padding=True, return_tensors="np")
    ids = tensors(kserve, **{name: coded[name].astype(np.int32) for name in ("input_ids", "attention_mask")})
    raw = client.infer("minilm_encoder", ids)
    assert np.allclose(facade.as_numpy("embedding"), raw.as_numpy("embedding"), atol=1e-5)
    with pytest.raises(Exception, match="send either text or input_ids"):
        client.infer("minilm", [*ids[:1], *text])
