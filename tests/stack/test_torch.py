"""The torch engine inside the real tritonserver: on the GPUs that are there, else on torch's CPU device."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from tests.ports import first_port

from .conftest import RECORDINGS, Stack, portable, started
from .test_text import openings

MODELS = "mini-whisper,mini-gpt2"
PORT = first_port("torch")


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    home = tmp_path_factory.mktemp("torch")
    with started(portable(home, PORT, MODELS, 2, target="torch"), tidy=False) as stack:
        yield stack


def said(stack: Stack, **options: object) -> httpx.Response:
    body = {"model": "mini-gpt2", "prompt": openings(1)[0], "max_tokens": 24, **options}
    return httpx.post(f"{stack.url}/v1/completions", json=body, timeout=240)


def test_words_are_the_recordings(stack: Stack) -> None:
    """With times of words, which the engine's own attention gives."""
    expected = "I want to buy seventy umbrellas near the market. Where is the beautiful knife?"
    fields = {"response_format": "verbose_json", "timestamp_granularities[]": ["word", "segment"]}
    answer = stack.transcribe((RECORDINGS / "demo.flac").read_bytes(), model="mini-whisper", **fields)
    assert answer.status_code == 200, answer.text
    body = answer.json()
    assert body["text"].startswith(expected)
    starts = [word["start"] for word in body["words"]]
    assert len(starts) == len(body["text"].split())
    assert starts == sorted(starts)
    assert 7 < starts[-1] < 10


def test_texts_are_the_same_whole_streamed_and_in_company(stack: Stack) -> None:
    """Greedy; and the same seed says the same twice."""
    whole = said(stack, temperature=0).json()["choices"][0]["text"]
    assert len(whole.split()) > 3
    streamed = said(stack, temperature=0, stream=True).text
    assert streamed.count("data: {") > 1
    assert streamed.rstrip().endswith("data: [DONE]")
    drawn = [said(stack, temperature=1.0, seed=5).json()["choices"][0]["text"] for _ in range(2)]
    assert drawn[0] == drawn[1] != whole
    many = said(stack, temperature=0, n=1, prompt=[openings(3)[i] for i in (0, 1, 0, 2)]).json()["choices"]
    assert [many[0]["text"], many[2]["text"]] == [whole, whole]
