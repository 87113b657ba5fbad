"""Questions about pictures on the torch engine inside the real tritonserver: on the GPUs that are there, else
on torch's CPU device.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest
from openai import OpenAI

from miniatures.training.answers.evaluate import AnswerPeer, held_out
from tests.ports import first_port

from .conftest import ROOT, Stack, portable, started
from .test_pictures import KINDS, MODEL, about, alike, answered, described_by, together

PORT = first_port("torch-pictures")


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """One instance of each."""
    models = ",".join(KINDS)
    build = [sys.executable, "-m", "build", "engines", "--target", "torch", "--model-id", models]
    subprocess.run(build, cwd=ROOT, check=True)
    environment = portable(tmp_path_factory.mktemp("torch"), PORT, models, len(KINDS))
    with started(environment | {"TARGET": "torch"}, tidy=False) as found:
        yield found


@pytest.fixture(scope="module")
def client(stack: Stack) -> OpenAI:
    return stack.openai(timeout=120)


@pytest.mark.parametrize("model", [*KINDS])
def test_answers_are_transformers(client: OpenAI, model: str) -> None:
    """Whole answers to 40 questions of every kind: a few alone, and all at once. Tables are halves, and so is
    the engine on a GPU.
    """
    pairs = held_out(40)
    expected = AnswerPeer(KINDS[model], ROOT / "miniatures" / KINDS[model]).answers(pairs)
    alone = [answered(client, about(pair), model) for pair in pairs[:3]]
    assert alike([*alone, *together(client, pairs, model)], [*expected[:3], *expected]) >= 0.95


def test_one_question_about_forty_pictures(client: OpenAI) -> None:
    """All at once, in one running batch: 40 right answers, of which no two are the same."""
    pairs = described_by(AnswerPeer(KINDS[MODEL], ROOT / "miniatures" / KINDS[MODEL]))
    assert together(client, pairs) == [pair.question.answer for pair in pairs]
