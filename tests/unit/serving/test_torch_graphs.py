"""What the torch engine records for a GPU: the same numbers as without. On a CPU nothing is recorded, and the
same work runs.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from serving.audio.log_mel import RATE
from serving.engine.collected import Collected
from serving.engine.jobs import Job, Limits
from serving.engine.runtime import Row
from serving.engine.sampling import Sampling
from serving.engine.scheduler import Scheduler
from serving.engine.torch import runtime as module
from serving.engine.torch.pieces import Pieces
from serving.engine.torch.runtime import AT_ONCE, TorchRuntime
from serving.engine.torch.staging import PART

pytestmark = pytest.mark.slow  # imports torch and transformers, exports
PROMPT = (50258, 50259, 50359, 50363)


@pytest.fixture(scope="module")
def runtime(torch_engine: Path) -> TorchRuntime:
    return TorchRuntime(torch_engine, {"precision": "float32", "max_rows": 4})


def sounds(count: int) -> list[np.ndarray]:
    rng = np.random.default_rng(1)
    return [rng.standard_normal(30 * RATE, np.float32) / 10 for _ in range(count)]


def encoded(runtime: TorchRuntime, count: int) -> list[torch.Tensor]:
    """Memories of as many sounds, none of them remembered."""
    runtime.recent.clear()
    found = runtime.encode([runtime.prepare(sound) for sound in sounds(count)])
    assert all(memory.ready(wait=True) for memory in found)
    return [memory.parts for memory in found]


def test_memories_are_the_same(runtime: TorchRuntime, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of groups of several sizes, also after larger ones, whose sounds still lie there."""
    monkeypatch.setattr(runtime, "graphs", None)
    expected = encoded(runtime, AT_ONCE + 2)
    with torch.inference_mode():
        monkeypatch.setattr(runtime, "graphs", runtime._encoder_graphs())
    for count in (AT_ONCE + 2, 3, 1):
        for found, own in zip(encoded(runtime, count), expected, strict=False):
            torch.testing.assert_close(found, own, rtol=1e-4, atol=1e-4)


def said(runtime: TorchRuntime, memories: list[object], joins: int) -> list[list[int]]:
    """Ids of two sounds, of which the second joins after so many steps."""
    choice, batch = Sampling(max_tokens=16, end_id=-1), runtime.batch()
    rows, texts = [Row(None, PROMPT, 0, memories[0], None, choice)], [list[int](), list[int]()]
    for n in range(12):
        if n == joins:
            rows.append(Row(None, PROMPT, 0, memories[1], None, choice))
        best = batch.step(rows).best.tolist()
        for text, token in zip(texts, best, strict=False):
            text.append(token)
        rows = [
            Row(i, (text[-1],), len(PROMPT) + len(text) - 1, memories[i], None, choice)
            for i, text in enumerate(texts[: len(best)])
        ]
    return texts


def test_an_encoder_works_a_piece_for_each_step(
    runtime: TorchRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Alongside a text that goes on as it would alone; a step that needs the rest at once gets it."""
    monkeypatch.setattr(runtime, "graphs", None)
    one, other = sounds(2)
    runtime.recent.clear()
    alone, memory = runtime.encode([runtime.prepare(one), runtime.prepare(other)])
    expected = said(runtime, [alone, memory], 2)
    monkeypatch.setattr(module, "LAYERS_AT_ONCE", 1)
    with torch.inference_mode():
        monkeypatch.setattr(runtime, "graphs", runtime._encoder_graphs())
    layers, choice = len(runtime.model.encoder.layers), Sampling(max_tokens=16, end_id=-1)
    assert layers > 2
    for joins in (2, layers):
        runtime.recent.clear()
        (first,) = runtime.encode([runtime.prepare(one)])
        assert first.coming.left == layers - 1
        assert first.ready(wait=True)
        (second,) = runtime.encode([runtime.prepare(other)])
        batch = runtime.batch()
        step = batch.step([Row(None, PROMPT, 0, first, None, choice)])
        assert second.coming.left == layers - 2, "one when it was asked for, one beside the step"
        assert not second.ready()
        batch.step([Row(0, (int(step.best[0]),), len(PROMPT), first, None, choice)])
        assert second.coming.left == layers - 3
        texts = said(runtime, [first, second], joins)
        assert texts == [text[: len(own)] for text, own in zip(expected, texts, strict=True)]
        assert second.ready()
        torch.testing.assert_close(second.parts, memory.parts, rtol=1e-4, atol=1e-4)


def test_what_fails_fails_alone(runtime: TorchRuntime) -> None:
    """The pieces after it are left out, and those of others are not."""
    pieces, done = runtime.running.encoders, list[int]()

    def fails() -> None:
        raise ValueError("no")

    bad = pieces.add([fails, lambda: done.append(1)])
    good = pieces.add([lambda: done.append(2)])
    assert good.ready(wait=True)
    assert done == [2]
    assert good.error is None
    assert bad.ready(wait=True)
    assert str(bad.error) == "no"
    assert not pieces.waiting


def test_a_sound_that_could_not_be_encoded_is_asked_for_again(
    runtime: TorchRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What fails alongside a step is reported to its own request, and is not remembered."""
    first, second = sounds(2)
    runtime.recent.clear()
    pieces = runtime.running.encoders
    pieces.add([lambda: None])  # so that nothing of the sound is queued at once
    with monkeypatch.context() as patch:
        patch.setattr(runtime, "_sound", lambda data: 1 / 0)
        patch.setattr(runtime, "graphs", None)
        (memory,) = runtime.encode([runtime.prepare(first)])
        assert memory.failed is None
        assert memory.ready(wait=True)
    assert isinstance(memory.failed, ZeroDivisionError)
    again, other = runtime.encode([runtime.prepare(first), runtime.prepare(second)])
    assert again is not memory
    assert again.ready(wait=True)
    assert other.ready(wait=True)
    assert again.failed is other.failed is None


def test_sounds_are_told_apart_by_every_sample(runtime: TorchRuntime) -> None:
    """The hash covers only a few; the same sound is encoded once, one that differs in others separately."""
    (sound,) = sounds(1)
    other = sound.copy()
    other[PART + 1] += 1
    runtime.recent.clear()
    again, first, second = runtime.encode([runtime.prepare(each) for each in (sound, sound, other)])
    assert again is first
    assert second is not first
    assert not torch.equal(first.parts, second.parts)
    (last,) = runtime.encode([runtime.prepare(other)])
    assert last is second
    assert runtime.encode([runtime.prepare(sound)])[0] is not first, "of two alike the last is remembered"


class Attending:
    """Caches of a decoder that reads a whole text at once and records cross-attention."""

    def __init__(self, runtime: TorchRuntime, parts: Tensor) -> None:
        self.parts, self.heads, self.seen = parts, runtime.shape.alignment_heads, list[Tensor]()

    def own(self, layer: int, q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale)

    def memory(self, layer: int, q: Tensor, scale: float) -> Tensor:
        keys, values = self.parts[2 * layer : 2 * layer + 2]
        weights = torch.softmax((q * scale) @ keys.transpose(-1, -2), -1)
        self.seen += [weights[0, head] for at, head in self.heads if at == layer]
        return weights @ values


@torch.inference_mode()
def attended(runtime: TorchRuntime, ids: tuple[int, ...], parts: Tensor) -> np.ndarray:
    """The cross-attention from each id of a text."""
    caches = Attending(runtime, parts)
    device = parts.device
    runtime.model.decoder(
        torch.tensor([ids], device=device), torch.arange(len(ids), device=device)[None], caches
    )
    return torch.stack(caches.seen).float().cpu().numpy()


def test_steps_tell_where_they_looked(runtime: TorchRuntime) -> None:
    """As the reading of the whole text does, for texts that take each other's places, alongside one that
    asks for nothing and one that draws by chance.
    """
    scheduler = Scheduler(runtime, Limits(max_rows=4))
    lengths, made = (3, 30, 12, 7, 25, 18, 9), list[tuple[np.ndarray, Job]]()
    for sound, length in zip(sounds(len(lengths)), lengths, strict=True):
        choice = Sampling(length, -1, temperature=1.0, seed=7) if length == 12 else Sampling(length, -1)
        made.append((sound, Job(PROMPT, choice, Collected(), sound, attend=length != 7)))
    for _, job in made:
        scheduler.submit(job)
    scheduler.start()
    for sound, job in made:
        (text, *_) = job.listener.wait(60)
        if not job.attend:
            assert job.seen is None
            continue
        (memory,) = runtime.encode([runtime.prepare(sound)])
        assert memory.ready(wait=True)
        read = attended(runtime, (*PROMPT, *text.ids[:-1]), memory.parts)[:, len(PROMPT) - 1 :]
        seen = job.seen()
        assert seen.dtype == np.float16
        assert seen.shape == read.shape == (len(runtime.shape.alignment_heads), len(text.ids), memory.length)
        np.testing.assert_allclose(seen, read, rtol=0.02, atol=2e-4)
    scheduler.stop()


def test_a_work_begins_at_once_where_nothing_runs(runtime: TorchRuntime) -> None:
    """Else its pieces are queued with the steps."""
    pieces = Pieces(runtime.device)
    assert pieces.idle
    first = pieces.add([lambda: None])
    assert not pieces.idle
    pieces.next()
    assert pieces.idle
    first.event = SimpleNamespace(query=lambda: False)
    assert not pieces.idle
