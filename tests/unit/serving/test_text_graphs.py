"""What CUDA graphs read, also recorded on a CPU, where they are the functions themselves: padding, rows and
buffers are a GPU's.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

from serving.engine.runtime import Row
from serving.engine.torch.batch import WHOLE
from serving.engine.torch.runtime import TorchRuntime

from ..engines import exported
from .test_text_engines import model_of

pytestmark = pytest.mark.long

LENGTHS = (1, 15, 16, 17, 31, 33, 64, 100, 2, 16, 16)


def engine(folder: Path, name: str) -> TorchRuntime:
    made = exported("torch", name, model_of(name), folder)
    return TorchRuntime(made, {"precision": "float32", "max_rows": 16})


def prompts(lengths: Sequence[int]) -> list[tuple[int, ...]]:
    rng = np.random.default_rng(5)
    return [tuple(rng.integers(3, 290, length).tolist()) for length in lengths]


def record(runtime: TorchRuntime) -> None:
    """The graphs of prompts, as loading records them."""
    with torch.inference_mode(), runtime.device.on(runtime.device.steps):
        runtime.running.record_prompts(WHOLE)
        runtime.running.clear()


def said(runtime: TorchRuntime, asked: Sequence[tuple[int, ...]], steps: int = 4) -> list[list[int]]:
    """The likeliest ids after prompts that are read at once."""
    batch = runtime.batch()
    texts = [[int(token)] for token in batch.step([Row(None, ids, 0, None) for ids in asked]).best]
    for _ in range(steps):
        rows = [
            Row(i, (text[-1],), len(ids) + len(text) - 1, None)
            for i, (ids, text) in enumerate(zip(asked, texts, strict=True))
        ]
        for text, token in zip(texts, batch.step(rows).best, strict=True):
            text.append(int(token))
    return texts


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_prompts_read_by_graphs_are_the_same(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At, below and beyond the edges of their lengths, up to the last position, and more than one graph
    takes; only what fits is read by one.
    """
    runtime = engine(tmp_path, name)
    batch, last = runtime.running, runtime.facts.positions - 1
    if not runtime.device.gpu:
        assert not batch.joining, "padding costs a CPU more than it spares"
    batch.joining.clear()
    expected = said(runtime, prompts(LENGTHS)), said(runtime, prompts([last]), 0)
    record(runtime)
    read = list[tuple[int, int]]()
    graph_for = batch._graph_for

    def noted(lengths: Sequence[int]) -> tuple[int, int] | None:
        found = graph_for(lengths)
        read.extend([found] if found else [])
        return found

    monkeypatch.setattr(batch, "_graph_for", noted)
    assert (said(runtime, prompts(LENGTHS)), said(runtime, prompts([last]), 0)) == expected
    assert read[:3] == [(8, 32), (2, 64), (1, 128)]


def test_large_models_read_few_ids_by_graphs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = engine(tmp_path, "gpt2")
    monkeypatch.setattr("serving.engine.torch.batch.worth_recording", lambda _: 100)
    runtime.running.joining.clear()
    record(runtime)
    assert max(rows * length for rows, length in runtime.running.joining) == 64
    expected = said(runtime, prompts(LENGTHS))
    runtime.running.joining.clear()
    assert said(runtime, prompts(LENGTHS)) == expected


@pytest.mark.parametrize("name", ["t5", "bart"])
def test_texts_read_by_graphs_are_the_same(tmp_path: Path, name: str) -> None:
    """As many as there are graphs for and one more, of lengths at their edges."""
    runtime = engine(tmp_path, name)
    texts = runtime.texts
    assert texts is not None
    asked = [torch.tensor(ids) for ids in prompts([3, 15, 16, 17, 63, 33, 16, 16, 128])]
    with torch.inference_mode():
        graphs = texts.recorded()
        assert {(1, 16), (4, 64), (8, 128)} <= set(graphs), "or nothing is compared"
        for some in (asked[:1], asked[1:3], asked[:3], asked[2:4], asked[:8], asked):
            texts.graphs = {}
            expected = texts.read(some).clone()
            texts.graphs = graphs
            found = texts.read(some)
            for row, ids in enumerate(some):
                torch.testing.assert_close(
                    found[row, :, :, : len(ids)], expected[row, :, :, : len(ids)], atol=1e-4, rtol=1e-4
                )
