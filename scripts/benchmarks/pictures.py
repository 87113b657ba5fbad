"""LLaVA in OpenVINO beside transformers on the same random weights: `python -m scripts.benchmarks.pictures`.

The shape is CLIP ViT-B/16 before 24 layers of LLaMA with a billion weights. Requests come all at once, each
with a picture of its own. Transformers gets them as one batch, which is the best it can do with them. Time to
the first token includes the picture; tokens a second, all requests together. Both are in memory all the time
and measured in turn, so that what else the machine does slows both; the best of several rounds counts.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import LogitsProcessorList

from build.checkpoints import llava
from conch.bundle import PictureFacts, PicturePrompt
from serving.engine.collected import Collected
from serving.engine.inputs import parse
from serving.engine.jobs import Limits
from serving.engine.openvino.encoder import OpenVinoEncoder
from serving.engine.openvino.runtime import OpenVinoRuntime
from serving.engine.scheduler import Scheduler

SEED, WORDS = 0, 20
Row = dict[str, Any]


def pictures(count: int, size: int) -> NDArray[np.float32]:
    """Noise, [pictures, 3, size, size]."""
    return np.random.default_rng(1).standard_normal((count, 3, size, size)).astype(np.float32)


def words() -> list[int]:
    """Ids of the question."""
    return [int(one) for one in np.random.default_rng(2).integers(10, 30_000, WORDS)]


Ask = Callable[
    [int, int], tuple[float, float]
]  # requests, tokens of each: seconds until first ones, until all


class FirstToken:
    """When the first logits come; they are left as they are. A LogitsProcessor."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        self.seconds = self.seconds or time.perf_counter()
        return scores


def peer(shape: str, dtype: torch.dtype) -> Ask:
    """Transformers."""
    torch.manual_seed(SEED)
    model = llava.random_model(shape).eval().to(dtype)
    vision, token = model.config.vision_config, model.config.image_token_id
    rows = (vision.image_size // vision.patch_size) ** 2

    def ask(count: int, new: int) -> tuple[float, float]:
        ids = torch.tensor([[1, *[token] * rows, *words()]] * count)
        seen = torch.from_numpy(pictures(count, vision.image_size)).to(dtype)
        began, first = time.perf_counter(), FirstToken()
        with torch.inference_mode():
            model.generate(
                input_ids=ids,
                pixel_values=seen,
                attention_mask=torch.ones_like(ids),
                do_sample=False,
                min_new_tokens=new,
                max_new_tokens=new,
                logits_processor=LogitsProcessorList([first]),
            )
        return first.seconds - began, time.perf_counter() - began

    return ask


def own(folder: Path) -> tuple[str, Ask]:
    """Ours, and what it computes in: what multimodal_encoders and the engine model do, in this process."""
    engine, encoder = OpenVinoRuntime(folder), OpenVinoEncoder(folder, {}, graph="picture")
    prompt, vocabulary = PicturePrompt.load(folder), engine.facts.vocabulary
    size = PictureFacts.load(folder).size
    scheduler = Scheduler(engine, Limits())
    scheduler.start()
    ids = np.array([[1, *range(vocabulary, vocabulary + prompt.rows), *words()]], np.int32)

    def ask(count: int, new: int) -> tuple[float, float]:
        began, marks = time.perf_counter(), dict[int, float]()
        table = encoder.encode(pixels=pictures(count, size)).astype(np.float16)

        def mark(number: int, _: object) -> None:
            marks.setdefault(number, time.perf_counter() - began)

        heard = [Collected(partial(mark, number)) for number in range(count)]
        for listener, rows in zip(heard, table, strict=True):
            arrays = {
                "input_ids": ids,
                "request_output_len": np.array([[new]], np.int32),
                "end_id": np.array([[-1]], np.int32),
                "streaming": np.array([[True]]),
                "prompt_embedding_table": rows[None],
            }
            scheduler.submit(parse(arrays, listener, engine.facts)[0])
        for listener in heard:
            listener.wait(600)
        return sum(marks.values()) / count, time.perf_counter() - began

    return f"conch ({engine.precision})", ask


def measured(asks: dict[str, Ask], count: int, tokens: int, rounds: int) -> dict[str, Row]:
    """The best of each, by name; a request of one token goes before, as warming up."""
    best: dict[str, Row] = {}
    for one in range(rounds):
        for name, ask in asks.items():
            if one == 0:
                ask(1, 1)
            first, whole = ask(count, tokens)
            row = shown(
                {"engine": name, "in flight": count, "first": first, "tokens/s": count * tokens / whole}
            )
            old = best.get(name, row)
            best[name] = row | {
                "first": min(old["first"], first),
                "tokens/s": max(old["tokens/s"], row["tokens/s"]),
            }
    return best


def shown(row: Row) -> Row:
    """For people."""
    figures = {"first": round(row["first"], 2), "tokens/s": round(row["tokens/s"], 2)}
    print(json.dumps(row | figures), flush=True)
    return row


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shape", choices=[*llava.SHAPES], default="llava-1b")
    parser.add_argument("--tokens", type=int, default=32, help="of each answer")
    parser.add_argument("--flights", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--engine", type=Path, help="an empty folder to keep it in, or one that has it")
    parser.add_argument("--peer", choices=["float32", "bfloat16"], default="float32", help="its numbers")
    given = parser.parse_args()
    with ExitStack() as held:
        folder = given.engine or Path(held.enter_context(tempfile.TemporaryDirectory()))
        if not (folder / "picture.json").exists():
            export = [sys.executable, "-m", "build.targets.openvino.export", "--family", "llava"]
            export += ["--weights", f"random:{given.shape}", "--output", str(folder), "--seed", str(SEED)]
            subprocess.run(export, check=True)
        name, ours = own(folder)
        theirs = f"transformers {given.peer}"
        asks = {theirs: peer(given.shape, getattr(torch, given.peer)), name: ours}
        for count in given.flights:
            best = measured(asks, count, given.tokens, given.rounds)
            times = {
                "first": round(best[theirs]["first"] / best[name]["first"], 2),
                "tokens/s": round(best[name]["tokens/s"] / best[theirs]["tokens/s"], 2),
            }
            print(json.dumps({"in flight": count, "times as fast": times, "wanted": 2}), flush=True)


if __name__ == "__main__":
    main()
