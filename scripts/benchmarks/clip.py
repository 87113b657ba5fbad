"""CLIP's encoders in OpenVINO beside transformers on the same random weights of ViT-B/32, in one process:
`python -m scripts.benchmarks.clip`. Decoding and resizing a photograph is timed too.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from io import BytesIO
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from transformers import CLIPConfig, CLIPModel

from build.targets.openvino.export_encoder import export
from conch.bundle import PictureFacts
from serving.engine.openvino.encoder import OpenVinoEncoder
from serving.vision.decoding import decoded
from serving.vision.preprocessing import pixels

TOKENS = 24  # of a caption
PROCESSOR = {"size": 224, "crop_size": 224, "image_mean": [0.48, 0.46, 0.41], "image_std": [0.27, 0.26, 0.28]}


def seconds(work: Callable[[], object], rounds: int) -> float:
    """The best of some rounds, after one that warms up."""
    times = []
    for _ in range(rounds + 1):
        started = time.perf_counter()
        work()
        times.append(time.perf_counter() - started)
    return min(times[1:])


@dataclass(frozen=True)
class Inputs:
    """Normalized pixels of noise, or one caption again and again, for so many rows."""

    count: int

    @property
    def pixels(self) -> NDArray[np.float32]:
        """[rows, 3, 224, 224]."""
        return np.random.default_rng(0).normal(size=(self.count, 3, 224, 224)).astype(np.float32)

    @property
    def ids(self) -> NDArray[np.int64]:
        """[rows, TOKENS]."""
        return np.array([[500] * (TOKENS - 1) + [49407]] * self.count)


def peers(folder: Path, counts: Sequence[int], rounds: int) -> dict[tuple[str, int], float]:
    """Seconds of transformers."""
    model = CLIPModel.from_pretrained(folder).eval()
    taken = {}
    with torch.inference_mode():
        for inputs in map(Inputs, counts):
            seen, read = torch.from_numpy(inputs.pixels), torch.from_numpy(inputs.ids)
            taken["picture", inputs.count] = seconds(
                partial(model.get_image_features, pixel_values=seen), rounds
            )
            taken["text", inputs.count] = seconds(partial(model.get_text_features, input_ids=read), rounds)
    return taken


def own(folder: Path, counts: Sequence[int], rounds: int) -> dict[tuple[str, int], float]:
    """Seconds of ours."""
    image, text = (OpenVinoEncoder(folder, {}, graph=graph) for graph in ("image", "text"))
    taken = {}
    for inputs in map(Inputs, counts):
        mask = np.ones_like(inputs.ids)
        taken["picture", inputs.count] = seconds(partial(image.encode, pixels=inputs.pixels), rounds)
        taken["text", inputs.count] = seconds(partial(text.encode, ids=inputs.ids, mask=mask), rounds)
    return taken


def measure(folder: Path, rounds: int, counts: Sequence[int]) -> None:
    """Both encoders by numbers of rows, transformers first (OpenVINO's threads keep cores busy for a while),
    then a photograph's preparation.
    """
    torch.manual_seed(0)
    CLIPModel(CLIPConfig()).save_pretrained(folder)
    (folder / "preprocessor_config.json").write_text(json.dumps(PROCESSOR))
    theirs = peers(folder, counts, rounds)
    export("clip", folder, folder, "none", 0)
    ours = own(folder, counts, rounds)
    for (what, count), taken in sorted(theirs.items()):
        times = {"ms": ours[what, count] / count * 1e3, "transformers ms": taken / count * 1e3}
        row = {"what": what, "rows": count, **times, "times": taken / ours[what, count]}
        print(
            json.dumps({name: round(v, 2) if isinstance(v, float) else v for name, v in row.items()}),
            flush=True,
        )
    photograph(PictureFacts.load(folder), rounds)


def photograph(facts: PictureFacts, rounds: int) -> None:
    """A JPEG of 12 million pixels."""
    noise = np.random.default_rng(0).integers(0, 256, (300, 400, 3), np.uint8)
    file = BytesIO()
    Image.fromarray(noise).resize((4000, 3000)).save(file, "JPEG")
    taken = seconds(lambda: decoded(file.getvalue(), partial(pixels, facts=facts)), rounds)
    print(json.dumps({"what": "decode and prepare 4000 x 3000", "ms": round(taken * 1e3, 1)}), flush=True)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 4, 16])
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        measure(Path(folder), given.rounds, given.rows)


if __name__ == "__main__":
    main()
