"""What the torch engine records for a GPU: the same numbers as without. On a CPU nothing is recorded, and the
same work runs.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from serving.audio.log_mel import RATE
from serving.engine.torch.runtime import AT_ONCE, TorchRuntime

from ..conftest import MINIATURE
from ..engines import export

pytestmark = pytest.mark.slow  # imports torch and transformers, exports
PROMPT = (50258, 50259, 50359, 50363)


@pytest.fixture(scope="module")
def runtime(tmp_path_factory: pytest.TempPathFactory) -> TorchRuntime:
    engine = export("torch", "whisper", MINIATURE, tmp_path_factory.mktemp("torch"))
    return TorchRuntime(engine, {"precision": "float32", "max_rows": 4})


def sounds(count: int) -> list[np.ndarray]:
    rng = np.random.default_rng(1)
    return [rng.standard_normal(30 * RATE, np.float32) / 10 for _ in range(count)]


def encoded(runtime: TorchRuntime, count: int) -> list[torch.Tensor]:
    """Memories of as many sounds, none of them remembered."""
    runtime.recent.clear()
    found = runtime.encode([runtime.prepare(sound) for sound in sounds(count)])
    return [memory.parts for memory in found]


@pytest.mark.parametrize("count", [1, 3, AT_ONCE + 2])
def test_memories_are_the_same(runtime: TorchRuntime, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also behind larger groups, whose sounds still lie there."""
    monkeypatch.setattr(runtime, "graphs", None)
    expected = encoded(runtime, count)
    with torch.inference_mode():
        monkeypatch.setattr(runtime, "graphs", runtime._encoder_graphs())
    encoded(runtime, AT_ONCE)
    for found, own in zip(encoded(runtime, count), expected, strict=True):
        torch.testing.assert_close(found, own, rtol=1e-4, atol=1e-4)


def test_texts_look_at_the_same(runtime: TorchRuntime, monkeypatch: pytest.MonkeyPatch) -> None:
    """A short text after a long one, and one that fills all positions."""
    monkeypatch.setattr(runtime, "alignments", None)
    (memory,) = runtime.encode([runtime.prepare(sounds(1)[0])])
    texts = [(*PROMPT, *range(1000, 1000 + count)) for count in (runtime.facts.positions - 4, 30, 61)]
    expected = [runtime.align(text, memory) for text in texts]
    with torch.inference_mode():
        monkeypatch.setattr(runtime, "alignments", runtime._alignment_graphs())
    for text, own in zip(texts, expected, strict=True):
        found = runtime.align(text, memory)
        assert found.dtype == np.float16
        assert found.shape == own.shape == (own.shape[0], len(text), runtime.facts.encoder_positions)
        np.testing.assert_allclose(found, own, rtol=0.02, atol=1e-5)
        np.testing.assert_allclose(found.astype(np.float32).sum(-1), 1, atol=0.01)
