"""Long prompts that join running texts on the torch engine: `python -m bench.performance.torch_prompts
[--shape llama-7b] [--pieces 0,128,256] [--output FILE]`, on the GPU that is there.

A decoder with random weights in float16, 2,048 positions. First 24 texts run
while 24 prompts of 512 ids join, one each 0.25 s: the time between two tokens of the texts, and to a prompt's
first. Then 1 and 32 clients ask for 64 ids after 512, each again as soon as it is answered.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor

from conch.bundle import EngineFacts
from serving.architectures.shape import Shape
from serving.architectures.transformer import Transformer
from serving.engine.collected import Collected
from serving.engine.jobs import Job, Limits
from serving.engine.sampling import Sampling
from serving.engine.scheduler import Scheduler
from serving.engine.torch.runtime import WEIGHTS, TorchRuntime

from .stage import Results
from .torch_engine import Load, machine

POSITIONS, ROWS, RUNNING, JOINING, EACH = 2048, 48, 24, 24, 0.25
READ, NEW = 512, 64
FORM: dict[str, Any] = {"activation": "silu", "gated": True, "norm": "rms", "bias": False, "rotary": True}
# Width, width of a head, vocabulary, layers, heads, inner width.
LLAMA = Shape("llama", 4_096, 128, 32_064, 32, 32, 11_008, targets=POSITIONS, **FORM)
QWEN = Shape("llama", 3_584, 128, 152_064, 28, 28, 18_944, targets=POSITIONS, **FORM)
SHAPES = {
    "llama-7b": LLAMA,
    "llama-3.1-8b": replace(LLAMA, vocabulary=128_256, decoder_inner=14_336, key_heads=8),
    "qwen2.5-7b": replace(QWEN, key_heads=4, qkv_bias=True),
}


def make(folder: Path, shape: Shape) -> None:
    """Write an engine folder; random numbers are repeated, which makes no product faster."""
    torch.manual_seed(0)
    numbers = (0.02 * torch.randn((1 << 22) + 1)).half()

    def filled(name: str, tensor: Tensor) -> Tensor:
        if name.endswith("norm.weight"):
            return torch.ones(tensor.shape, dtype=torch.float16)
        times = -(-tensor.numel() // len(numbers))
        own = numbers.roll(crc32(name.encode()))  # no two weights are alike
        return own.repeat(times)[: tensor.numel()].view(tensor.shape).clone()

    with torch.device("meta"):
        state = Transformer(shape).state_dict()
    save_file({name: filled(name, tensor) for name, tensor in state.items()}, folder / WEIGHTS)
    shape.save(folder)
    EngineFacts(shape.family, shape.targets, shape.vocabulary, 0).save(folder)


def prompt(number: int, length: int) -> tuple[int, ...]:
    """Return random ids."""
    return tuple(np.random.default_rng(number).integers(10, 31_000, length).tolist())


def joining(runtime: TorchRuntime, piece: int) -> dict[str, float]:
    """Return milliseconds between tokens of running texts, and to the first token of prompts that join."""
    scheduler = Scheduler(runtime, Limits(max_rows=ROWS, join_at_once=8, prefill_tokens=piece))
    scheduler.start()

    def ask(number: int, read: int, new: int) -> tuple[float, list[float]]:
        """Send a request, and return when it was sent, and when each of its tokens came so far."""
        came, sampling = list[float](), Sampling(max_tokens=new, end_id=-1)
        listener = Collected(lambda _: came.append(time.perf_counter()))
        asked = time.perf_counter()
        scheduler.submit(Job(prompt(number, read), sampling, listener, streaming=True))
        return asked, came

    running = [ask(number, 64, POSITIONS - 65) for number in range(RUNNING)]
    time.sleep(1.0)
    alone = time.perf_counter()
    time.sleep(0.5)
    began, joined = time.perf_counter(), []
    for number in range(JOINING):
        joined.append(ask(100 + number, READ, 8))
        time.sleep(EACH)
    ended = time.perf_counter()
    scheduler.stop()
    came = [np.array(times) for _, times in running]
    gaps = np.concatenate([np.diff(one[(one > began) & (one < ended)]) for one in came]) * 1e3
    quiet = np.concatenate([np.diff(one[(one > alone) & (one < began)]) for one in came]) * 1e3
    first = [(times[0] - asked) * 1e3 for asked, times in joined if times]
    return {
        "step": round(float(np.median(quiet)), 2),
        "gap_p50": round(float(np.median(gaps)), 2),
        "gap_p99": round(float(np.quantile(gaps, 0.99)), 2),
        "gap_max": round(float(gaps.max()), 2),
        "first_p50": round(float(np.median(first)), 1),
        "first_max": round(max(first), 1),
    }


def closed(runtime: TorchRuntime, piece: int, clients: int) -> dict[str, float]:
    """Return tokens per second of clients that ask again as soon as they are answered."""

    def asked(first: int, number: int) -> tuple[tuple[int, ...], Any]:
        return prompt(first + number, READ), None

    found: dict[str, float] = {}
    for first, each in ((1_000, 2), (100_000, 6 if clients > 1 else 16)):
        load = Load(runtime, clients, each * clients, partial(asked, first))
        load.scheduler = Scheduler(runtime, Limits(ROWS, 8, 1024, piece))
        found = load.run()
    return {"tokens_s": round(found["requests_s"] * NEW, 1), **found}


def main() -> None:
    """Measure each length of a piece."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shape", choices=SHAPES, default="llama-7b")
    parser.add_argument("--pieces", default="0,128,256")
    parser.add_argument("--output", type=Path)
    given = parser.parse_args()
    results = Results(given.output, machine=machine(), shape=given.shape)
    with tempfile.TemporaryDirectory() as work:
        make(Path(work), SHAPES[given.shape])
        for piece in map(int, given.pieces.split(",")):
            parameters = {"precision": "float16", "max_rows": ROWS, "prefill_tokens": piece}
            runtime = TorchRuntime(Path(work), parameters)
            row: dict[str, Any] = {"joining": joining(runtime, piece)}
            row |= {f"{clients} clients": closed(runtime, piece, clients) for clients in (1, 32)}
            results.add(str(piece), row)
            runtime.close()
            del runtime  # the next one needs its memory


if __name__ == "__main__":
    main()
