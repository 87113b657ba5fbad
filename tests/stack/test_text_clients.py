"""`scripts/prompts` against a running stack, as people call it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from .conftest import Stack
from .test_clients import command
from .test_text import questions


@pytest.mark.parametrize(
    ("model", "way"),
    [("mini-t5", ["--url", "{url}", "--stream"]), ("mini-bart", ["--triton", "{kserve}"])],
)
def test_prompts(text_stack: Stack, tmp_path: Path, model: str, way: list[str]) -> None:
    """Held-out questions: nearly all answers are exactly right, whichever way they go, and they stand in a
    file.
    """
    asked = questions(model, 4)
    (tmp_path / "q.jsonl").write_text(
        "\n".join(json.dumps({"prompt": pair.source, "reference": pair.target}) for pair in asked), "utf-8"
    )
    where = [option.format(url=text_stack.url, kserve=text_stack.kserve) for option in way]
    done = command(
        "prompts",
        tmp_path / "q.jsonl",
        *where,
        "--model",
        model,
        "--num-tasks",
        "4",
        "--output",
        tmp_path / "a.jsonl",
        "--json",
    )
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)
    assert (figures["answered"], figures["failed"], figures["compared"]) == (len(asked), 0, len(asked))
    assert figures["exact"] >= 0.8
    assert figures["rouge"]["rouge1"] >= figures["rouge"]["rougeL"] >= 0.9
    assert figures["tokens"] >= 3 * len(asked)
    assert bool(figures["first"]) == ("--stream" in way)
    answers = [json.loads(line) for line in (tmp_path / "a.jsonl").read_text("utf-8").splitlines()]
    assert [row["prompt"] for row in answers] == [pair.source for pair in asked]
    assert all(row["answer"] for row in answers)
