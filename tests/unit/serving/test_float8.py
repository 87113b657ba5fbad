"""An encoder whose products are 8-bit floats: nearly the same memories, and the same words."""

from __future__ import annotations

import wave
from pathlib import Path

import numpy as np
import pytest
import torch

from serving.audio.log_mel import RATE
from serving.engine.collected import Collected
from serving.engine.jobs import Job, Limits
from serving.engine.sampling import Sampling
from serving.engine.scheduler import Scheduler
from serving.engine.torch.device import Device, NoGpu
from serving.engine.torch.float8 import to_float8
from serving.engine.torch.runtime import TorchRuntime

from ..conftest import MINIATURE
from ..engines import export

pytestmark = pytest.mark.slow  # imports torch and transformers, exports
CPU = Device("cpu", torch.float32)
RECORDING = MINIATURE.parent / "recordings" / "order.wav"
PROMPT = (50258, 50259, 50359, 50363)


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export("torch", "whisper", MINIATURE, tmp_path_factory.mktemp("torch"))


@pytest.fixture(scope="module")
def rounded(engine: Path) -> TorchRuntime:
    return TorchRuntime(engine, {"encoder_precision": "float8", "max_rows": 2}, CPU)


@pytest.fixture(scope="module")
def plain(engine: Path) -> TorchRuntime:
    return TorchRuntime(engine, {"encoder_precision": "same", "max_rows": 2}, CPU)


def memory(runtime: TorchRuntime) -> torch.Tensor:
    runtime.recent.clear()
    sound = np.random.default_rng(1).standard_normal(30 * RATE, np.float32) / 10
    (found,) = runtime.encode([runtime.prepare(sound)])
    assert found.ready(wait=True)
    return found.parts.float().cpu()


def apart(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found - expected).norm() / expected.norm())


def test_memories_are_nearly_the_same(rounded: TorchRuntime, plain: TorchRuntime) -> None:
    assert 1e-3 < apart(memory(rounded), memory(plain)) < 0.15


def test_words_are_the_same(rounded: TorchRuntime, plain: TorchRuntime) -> None:
    sound, said = np.zeros(30 * RATE, np.float32), []
    with wave.open(str(RECORDING)) as file:
        samples = np.frombuffer(file.readframes(30 * RATE), np.int16)
    sound[: len(samples)] = samples / 32768
    for runtime in (rounded, plain):
        scheduler = Scheduler(runtime, Limits(max_rows=2, join_at_once=1, max_queue=4))
        scheduler.start()
        listener = Collected()
        scheduler.submit(Job(PROMPT, Sampling(max_tokens=64, end_id=50257), listener, sound))
        said.append(listener.wait(60)[0].ids)
        scheduler.stop()
    assert said[0] == said[1]
    assert len(said[0]) > 4


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_computes_what_a_cpu_computes(engine: Path, rounded: TorchRuntime, plain: TorchRuntime) -> None:
    """Its attention is in bfloat16."""
    parameters = {"precision": "float16", "encoder_precision": "float8", "max_rows": 2}
    found = memory(TorchRuntime(engine, parameters))
    assert apart(found, memory(rounded)) < min(0.05, apart(found, memory(plain)))


def test_unfit_gpus_are_refused(plain: TorchRuntime, monkeypatch: pytest.MonkeyPatch) -> None:
    encoder = plain.model.encoder
    assert encoder is not None
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA A100")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (8, 0))
    with pytest.raises(NoGpu, match=r"needs compute capability 8.9 .*; NVIDIA A100 has 8.0; leave"):
        to_float8(encoder, Device("cuda", torch.float16))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    with pytest.raises(NoGpu, match="needs precision float16 or bfloat16"):
        to_float8(encoder, Device("cuda", torch.float32))
