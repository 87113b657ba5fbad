"""Two text models and one that looks at pictures, in containers: another project from the same images."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from miniatures.training.answers.evaluate import held_out
from tests.stack.clients import streamed
from tests.stack.conftest import Stack
from tests.stack.test_pictures import about, answered, nvidias
from tests.stack.test_text import curl, openings, questions

from .conftest import project, started

MODELS = "mini-t5,mini-gpt2,mini-llava"
TEXT = project("text", MODEL_ID=MODELS, COMPOSE_PROFILES="instances-3", INSTANCES="3")


@pytest.fixture(scope="module")
def texts(docker_services: object) -> Iterator[Stack]:
    """Up once the images are built, gone with its volumes afterwards."""
    with started(TEXT) as stack:
        yield stack


def test_text_models_answer_in_containers(texts: Stack) -> None:
    """Triton's listeners and the OpenAI API, whole and streamed; each pool by its own name."""
    pair, create = questions("mini-t5", 1)[0], texts.openai().completions.create
    asked = {"text_input": pair.source, "max_tokens": 100, "bad_words": "", "stop_words": ""}
    assert curl(texts, asked)["text_output"] == pair.target
    stream = create(model="mini-t5", prompt=pair.source, max_tokens=100, temperature=0, stream=True)
    assert "".join(choice.text for chunk in stream for choice in chunk.choices) == pair.target
    assert create(model="mini-gpt2", prompt=openings(1)[0], max_tokens=40).choices[0].text
    assert httpx.get(f"{texts.url}/health/ready", timeout=60).json()["models"] == {
        "mini-t5": True,
        "mini-gpt2": True,
        "mini-llava": True,
    }


def test_pictures_in_containers(texts: Stack) -> None:
    """By OpenAI's SDK, and what NVIDIA's multimodal client streams."""
    for pair in held_out(5):
        assert answered(texts.openai(), about(pair)) == pair.question.answer
        asking, to = nvidias("llava", pair, stream=True), {"x-model-id": "mini-llava"}
        pieces = streamed(texts, "tensorrt_llm_bls_stream", asking, "text_output", to)
        assert "".join(pieces).strip() == pair.question.answer
