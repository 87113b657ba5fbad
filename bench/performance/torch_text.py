"""T5, BART and GPT-2 on the torch engine compared with transformers: `python -m bench.performance.torch_text
[--models …] [--in-flight 1,32] [--static] [--output FILE]`, on the GPU that is there.

True shapes, the same random weights in float16, 64 ids in, 64 out, no id ends a text. Ours: the engine with
its scheduler, each request alone, asked again as soon as it is answered. Theirs: `generate` on a batch of as
many, greedy; with `--static` also with a static cache and compiled steps, which takes a minute for each cell.
The best of theirs counts. What comes out is JSON, written after each part.
"""

from __future__ import annotations

import argparse
import gc
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from build import checkpoints
from serving.engine.torch.runtime import TorchRuntime

from .stage import Results
from .torch_engine import NEW, Load, export, generated, machine

READ = 64
FAMILIES = {"gpt2-medium": "gpt2", "flan-t5-base": "t5", "bart-large": "bart"}
Ids = tuple[int, ...]


def text(vocabulary: int, number: int) -> Ids:
    """Make random ids, none of them special; no two texts are equal, since the engine caches them."""
    return tuple(np.random.default_rng(number).integers(10, vocabulary - 200, READ).tolist())


def asked(family: str, start: int, vocabulary: int, first: int, number: int) -> tuple[Ids, Any]:
    """Return the decoder's and the encoder's input of our engine."""
    ids = text(vocabulary, first + number)
    return (ids, None) if family == "gpt2" else ((start,), np.array(ids, np.int64))


def ours(runtime: TorchRuntime, family: str, start: int, in_flight: int, each: int) -> dict[str, float]:
    """Return tokens per second through the scheduler, and durations."""
    make = partial(asked, family, start, runtime.facts.vocabulary)
    Load(runtime, in_flight, 8 + 2 * in_flight, partial(make, in_flight * 10_000)).run()
    found = Load(runtime, in_flight, each * in_flight, partial(make, in_flight * 20_000)).run()
    return {"tokens_s": round(found.pop("requests_s") * NEW, 1), **found}


def theirs(model: Any, vocabulary: int, size: int, **options: Any) -> dict[str, float]:
    """Return tokens per second of transformers' `generate`."""
    given = torch.tensor([text(vocabulary, n) for n in range(size)], device=model.device)
    inputs = {"input_ids": given, "attention_mask": torch.ones_like(given), "pad_token_id": 0}
    ms = generated(partial(model.generate, **inputs, num_beams=1, **options))
    return {"ms": round(ms, 1), "tokens_s": round(size * NEW / ms * 1e3, 1)}


def main() -> None:
    """Run all models and numbers of requests."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", choices=FAMILIES, default=list(FAMILIES))
    parser.add_argument("--in-flight", default="1,32")
    parser.add_argument("--requests", type=int, default=32, help="of ours, for each one in flight")
    parser.add_argument("--static", action="store_true")
    parser.add_argument("--output", type=Path)
    given = parser.parse_args()
    say = Results(given.output, machine=machine()).add

    sizes = [int(size) for size in given.in_flight.split(",")]
    for name in given.models:
        family = FAMILIES[name]
        with tempfile.TemporaryDirectory() as work:
            export(family, name, work)
            runtime = TorchRuntime(Path(work), {"precision": "float16", "max_rows": max(sizes)})
        model, _ = checkpoints.load(family, f"random:{name}")
        start = getattr(model.config, "decoder_start_token_id", None) or 0
        made = {size: ours(runtime, family, start, size, given.requests) for size in sizes}
        device, dtype, vocabulary = runtime.device.kind, runtime.device.dtype, runtime.facts.vocabulary
        runtime.close()
        del runtime
        gc.collect()
        model = model.to(device, dtype)
        for size in sizes:
            peers = {"dynamic": theirs(model, vocabulary, size)}
            if given.static:
                peers["static"] = theirs(model, vocabulary, size, cache_implementation="static")
            best = max(peer["tokens_s"] for peer in peers.values())
            times = round(made[size]["tokens_s"] / best, 2)
            say(f"{name} {size}", {"ours": made[size], "transformers": peers, "times": times})


if __name__ == "__main__":
    main()
