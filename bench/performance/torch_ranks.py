"""Decoder steps of the torch engine on one GPU and on several: `python -m bench.performance.torch_ranks
[--ranks 2] [--output FILE]`, each number of GPUs in a process of its own.

Random weights: GPT-2's architecture in gpt2-xl's size, and the decoder of LLaVA-1.5-7B (LLaMA-7B). Float16,
512 of 640 positions, steps as the scheduler asks for them, through the running batch.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any
from zlib import crc32

import torch
from safetensors.torch import save_file
from torch import Tensor

from conch.bundle import EngineFacts
from serving.architectures.shape import Shape
from serving.architectures.transformer import Transformer
from serving.engine.runtime import Row
from serving.engine.sampling import Sampling
from serving.engine.torch import load
from serving.engine.torch.runtime import WEIGHTS

from .stage import Results

ROOT = Path(__file__).parents[2]
POSITIONS, PROMPT, STEPS = 640, 512, 100
GPT2_XL = Shape("gpt2", 1600, 64, 50257, 48, 25, 6400, targets=POSITIONS)
LLAVA_7B = Shape(
    "llama",
    4096,
    128,
    32064,
    32,
    32,
    11008,
    targets=POSITIONS,
    activation="silu",
    gated=True,
    norm="rms",
    bias=False,
    rotary=True,
)
SIZES = {"gpt2-xl": GPT2_XL, "LLaVA-1.5-7B": LLAVA_7B}
ROWS = (1, 8, 32)


def shape_of(size: str, ranks: int) -> Shape:
    """Return the shape, with heads rounded up to a multiple of the ranks, also on one rank."""
    shape = SIZES[size]
    return replace(shape, decoder_heads=shape.decoder_heads + -shape.decoder_heads % ranks)


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


def measure(folder: Path, ranks: int) -> dict[str, Any]:
    """Return milliseconds per step by number of rows, and the ids of the first row."""
    began = time.perf_counter()
    parameters = {"precision": "float16", "max_rows": max(ROWS), "tp_size": ranks}
    runtime = load(folder, parameters)
    found: dict[str, Any] = {"load_s": round(time.perf_counter() - began, 1)}
    print("loaded", found, file=sys.stderr, flush=True)
    choice = Sampling(max_tokens=STEPS, end_id=-1)
    for count in ROWS:
        batch, prompt = runtime.batch(), tuple(range(5, 5 + PROMPT))
        rows = [Row(None, (*prompt[:-1], i), 0, None, None, choice) for i in range(count)]
        ids = []
        for n in range(STEPS):
            if n == STEPS // 5:
                began = time.perf_counter()
            step = batch.step(rows)
            ids.append(int(step.best[0]))
            rows = [Row(i, (int(step.best[i]),), PROMPT + n, None, None, choice) for i in range(count)]
        ms = (time.perf_counter() - began) / (STEPS - STEPS // 5) * 1e3
        found[f"{count} rows"] = {"ms": round(ms, 2), "tokens_s": round(count / ms * 1e3), "ids": ids[:12]}
        print(count, found[f"{count} rows"], file=sys.stderr, flush=True)
    return found  # the process ends, and its ranks with it


def main() -> None:
    """Run all sizes, on one GPU and on several."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--sizes", default=",".join(SIZES))
    parser.add_argument("--measure", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.measure:
        print(json.dumps(measure(Path(given.measure[0]), int(given.measure[1]))), flush=True)
        os._exit(0)  # after two GPUs, libraries below Python now and then wait for ever here
    results = Results(given.output)
    for size in given.sizes.split(","):
        with tempfile.TemporaryDirectory() as work:
            make(Path(work), shape_of(size, given.ranks))
            for ranks in (1, given.ranks):
                command = [sys.executable, "-m", __spec__.name, "--measure", work, str(ranks)]
                done = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True)
                results.add(f"{size}, {ranks} GPUs", json.loads(done.stdout.splitlines()[-1]))


if __name__ == "__main__":
    main()
