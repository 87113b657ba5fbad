"""LLaVA in OpenVINO beside transformers on the same random weights: `python -m scripts.benchmarks.pictures`.

The shape is CLIP ViT-B/16 before 24 layers of LLaMA with a billion weights. Requests come all at once, each
with a picture of its own. Transformers gets them as one batch, which is the best it can do with them; it is
measured in float32 and in bfloat16. Time to the first token includes the picture; tokens a second, all
requests together.
"""

from __future__ import annotations

import argparse
import gc
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from build.checkpoints import llava
from conch.bundle import PicturePrompt
from serving.engine.collected import Collected
from serving.engine.inputs import parse
from serving.engine.jobs import Limits
from serving.engine.openvino.encoder import OpenVinoEncoder
from serving.engine.openvino.graphs import Graphs
from serving.engine.scheduler import Scheduler

SEED, WORDS = 0, 20
Row = dict[str, Any]


def pictures(count: int, size: int) -> NDArray[np.float32]:
    """Noise, [pictures, 3, size, size]."""
    return np.random.default_rng(1).standard_normal((count, 3, size, size)).astype(np.float32)


def words() -> list[int]:
    """Ids of the question."""
    return [int(one) for one in np.random.default_rng(2).integers(10, 30_000, WORDS)]


def peers(shape: str, tokens: int, flights: list[int]) -> Iterator[Row]:
    """Transformers."""
    torch.manual_seed(SEED)
    model = llava.random_model(shape).eval()
    vision, token = model.config.vision_config, model.config.image_token_id
    rows = (vision.image_size // vision.patch_size) ** 2
    for dtype in (torch.float32, torch.bfloat16):
        model = model.to(dtype)
        for count in flights:
            ids = torch.tensor([[1, *[token] * rows, *words()]] * count)
            seen = torch.from_numpy(pictures(count, vision.image_size)).to(dtype)
            generated(model, ids, seen, 1)
            first, whole = generated(model, ids, seen, 1), generated(model, ids, seen, tokens)
            name = f"transformers {str(dtype).removeprefix('torch.')}"
            yield {"engine": name, "in flight": count, "first": first, "tokens/s": count * tokens / whole}


def generated(model: Any, ids: torch.Tensor, seen: torch.Tensor, new: int) -> float:
    """Seconds of as many new tokens."""
    began = time.perf_counter()
    model.generate(
        input_ids=ids,
        pixel_values=seen,
        attention_mask=torch.ones_like(ids),
        do_sample=False,
        min_new_tokens=new,
        max_new_tokens=new,
    )
    return time.perf_counter() - began


def own(folder: Path, tokens: int, flights: list[int]) -> Iterator[Row]:
    """Ours: what multimodal_encoders and the engine model do, in this process."""
    engine, encoder = Graphs(folder), OpenVinoEncoder(folder, {}, graph="picture")
    prompt, vocabulary = PicturePrompt.load(folder), engine.facts.vocabulary
    size = int(encoder.request.model_inputs[0].shape[2])
    scheduler = Scheduler(engine, Limits())
    scheduler.start()
    ids = np.array([[1, *range(vocabulary, vocabulary + prompt.rows), *words()]], np.int32)

    def ask(count: int) -> tuple[float, float]:
        """Seconds until the first tokens, on average, and until all."""
        began, marks = time.perf_counter(), dict[int, float]()
        table = encoder.encode(pixels=pictures(count, size)).astype(np.float16)

        def mark(number: int, _: object) -> None:
            marks.setdefault(number, time.perf_counter() - began)

        heard = [Collected(partial(mark, number)) for number in range(count)]
        for listener, rows in zip(heard, table, strict=True):
            arrays = {
                "input_ids": ids,
                "request_output_len": np.array([[tokens]], np.int32),
                "end_id": np.array([[-1]], np.int32),
                "streaming": np.array([[True]]),
                "prompt_embedding_table": rows[None],
            }
            scheduler.submit(parse(arrays, listener, engine.facts)[0])
        for listener in heard:
            listener.wait(600)
        return sum(marks.values()) / count, time.perf_counter() - began

    ask(1)
    for count in flights:
        first, whole = ask(count)
        name = f"conch ({engine.precision})"
        yield {"engine": name, "in flight": count, "first": first, "tokens/s": count * tokens / whole}
    scheduler.stop()


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
    given = parser.parse_args()
    with torch.inference_mode():
        theirs = [shown(row) for row in peers(given.shape, given.tokens, given.flights)]
    gc.collect()
    with tempfile.TemporaryDirectory() as folder:
        export = [sys.executable, "-m", "build.targets.openvino.export", "--family", "llava"]
        export += ["--weights", f"random:{given.shape}", "--output", folder, "--seed", str(SEED)]
        subprocess.run(export, check=True)
        ours = [shown(row) for row in own(Path(folder), given.tokens, given.flights)]
    for count in given.flights:
        best = max(row["tokens/s"] for row in theirs if row["in flight"] == count)
        soon = min(row["first"] for row in theirs if row["in flight"] == count)
        mine = next(row for row in ours if row["in flight"] == count)
        times = {"first": round(soon / mine["first"], 2), "tokens/s": round(mine["tokens/s"] / best, 2)}
        print(json.dumps({"in flight": count, "times as fast as the better peer": times, "wanted": 2}))


if __name__ == "__main__":
    main()
