"""Train a text miniature from nothing: `python -m miniatures.training.text.train t5 --seed 1
--output miniatures/t5`.

Texts are made on all cores first and kept on the device as token ids; minutes on one GPU. On a CPU, `--steps
200 --batch 16 --examples 20000` shows that the loss falls.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.utils import logging

from ..course import Course, say
from .corpus import make_corpus
from .models import SHAPES, new_model, pair_loss, save_weights, text_loss
from .vocabulary import LENGTHS, make_tokenizer

BUCKETS = 12
# Steps, rows of a step, texts to draw from, and the highest learning rate. The checkpoints here are runs of
# nine (T5, BART) and six minutes.
PLANS: dict[str, tuple[int, int, int, float]] = {
    "t5": (17_000, 1024, 1_000_000, 1e-3),
    "bart": (20_000, 512, 800_000, 1e-3),
    "gpt2": (7_200, 96, 300_000, 1e-3),
}


@dataclass
class Pairs:
    """Sources and targets in buckets of equal size and similar length, so that little of a batch is
    padding.
    """

    buckets: list[tuple[Tensor, Tensor]]
    device: str

    @classmethod
    def make(cls, name: str, folder: Path, count: int, seed: int, device: str) -> Pairs:
        """Draw, tokenize and sort `count` pairs."""
        sides, pad = make_corpus(name, folder, count, seed), SHAPES[name]["pad_token_id"]
        order = np.lexsort((sides[1].lengths, sides[0].lengths + sides[1].lengths))
        parts = np.array_split(order, BUCKETS)
        return cls(
            [tuple(torch.from_numpy(side.padded(part, pad)).to(device) for side in sides) for part in parts],
            device,
        )

    def loss(
        self, model: PreTrainedModel, rows: int, random: torch.Generator, progress: float = 1.0
    ) -> Tensor:
        """Of `rows` random pairs of one bucket: a short one at first, any after 20 % of the run.

        On single sentences a decoder finds within hundreds of steps what to copy from where; on paragraphs
        alone it long ignores its source.
        """
        open_buckets = 2 + round((len(self.buckets) - 2) * min(max(progress - 0.05, 0) / 0.15, 1))
        source, target = self.buckets[int(torch.randint(open_buckets, (1,), generator=random))]
        chosen = torch.randint(len(source), (rows,), generator=random).to(self.device)
        return pair_loss(model, source[chosen].long(), target[chosen].long())


@dataclass
class Stream:
    """Documents one after the other, each after an end-of-text token; `starts` are the places of those
    tokens.
    """

    ids: Tensor
    starts: Tensor
    length: int

    @classmethod
    def make(cls, name: str, folder: Path, count: int, seed: int, device: str) -> Stream:
        """Draw and tokenize `count` documents."""
        (corpus,) = make_corpus(name, folder, count, seed)
        ids = torch.from_numpy(np.insert(corpus.ids, corpus.starts[:-1], SHAPES[name]["eos_token_id"]))
        starts = torch.from_numpy(corpus.starts[:-1] + np.arange(len(corpus.starts) - 1))
        length = min(LENGTHS[name], len(ids) // 2)
        return cls(ids.to(device), starts[starts < len(ids) - length - 2].to(device), length)

    def loss(
        self, model: PreTrainedModel, rows: int, random: torch.Generator, progress: float = 1.0
    ) -> Tensor:
        """Of `rows` windows, each from the start of a document, every other one without the token before it:
        prompts come without it.
        """
        chosen = torch.randint(len(self.starts), (rows,), generator=random).to(self.starts.device)
        first = self.starts[chosen] + torch.arange(rows, device=chosen.device) % 2
        places = first[:, None] + torch.arange(self.length + 1, device=chosen.device)
        return text_loss(model, self.ids[places].long())


def train(name: str, course: Course, material: Pairs | Stream, output: Path, log: TextIO) -> PreTrainedModel:
    """Train, with the weights so far written into `output`."""
    random = course.begin()
    torch.backends.cuda.enable_cudnn_sdp(False)  # it plans again for every shape
    model = new_model(name).to(course.device).train()

    def loss(progress: float) -> Tensor:
        with course.autocast():
            return material.loss(model, course.rows, random, progress)

    optimizer = course.optimizer(model.parameters(), 0.02)
    course.run(optimizer, loss, lambda: save_weights(model, name, output), log)
    return model.eval()


def main() -> None:
    """Make texts, train, write the checkpoint and training.log."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", choices=list(PLANS))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--steps", type=int, help="default: the model's plan")
    parser.add_argument("--batch", type=int, help="rows of a step; default: the model's plan")
    parser.add_argument("--examples", type=int, help="texts to draw from; default: the model's plan")
    parser.add_argument("--minutes", type=float, default=60.0, help="of training at most")
    place = "default: miniatures/MODEL; the tokenizer there is used, or made if there is none"
    parser.add_argument("--output", type=Path, help=place)
    arguments = parser.parse_args()
    logging.disable_progress_bar()
    name, device = arguments.model, "cuda" if torch.cuda.is_available() else "cpu"
    output = arguments.output or Path("miniatures") / name
    steps, rows, examples, peak = PLANS[name]
    if not (output / "tokenizer.json").exists():
        make_tokenizer(name, output)
    seed, kind = arguments.seed, Stream if name == "gpt2" else Pairs
    course = Course(seed, arguments.steps or steps, arguments.batch or rows, peak, arguments.minutes, device)
    started = time.monotonic()
    material = kind.make(name, output, arguments.examples or examples, seed, device)
    with (output / "training.log").open("w") as log:
        made = time.monotonic() - started
        say(log, f"seed {course.seed}, {course.rows} rows a step, texts made in {made:.0f} s")
        save_weights(train(name, course, material, output, log), name, output)


if __name__ == "__main__":
    main()
