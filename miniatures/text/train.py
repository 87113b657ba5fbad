"""Train a text miniature from nothing: `python -m miniatures.text.train t5 --seed 1 --output miniatures/t5`.

Texts are made on all cores first and kept on the device as token ids; minutes on one GPU. On a CPU, `--steps
200 --batch 16 --examples 20000` shows that the loss falls.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TextIO

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.utils import logging

from .corpus import make_corpus
from .models import SHAPES, new_model, pair_loss, save_weights, text_loss
from .vocabulary import LENGTHS, make_tokenizer

BUCKETS = 12
SAVE_EVERY = 500
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
    """Documents one after the other, each behind an end-of-text token; `starts` are the places of those
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
        return text_loss(
            model, self.ids[first[:, None] + torch.arange(self.length + 1, device=chosen.device)].long()
        )


def rate(progress: float, warm: float = 0.04) -> float:
    """Warm-up and cosine decay to nearly nothing."""
    return min(progress / warm, 1.0) * (0.5 + 0.5 * math.cos(math.pi * min(progress, 1.0))) + 1e-3


@dataclass
class Training:
    """One run: `steps` at most, `minutes` at most (the learning rate decays by whichever is nearer to its
    end).
    """

    name: str
    seed: int
    steps: int
    rows: int
    peak: float
    minutes: float
    device: str
    output: Path

    def run(self, material: Pairs | Stream, log: TextIO) -> PreTrainedModel:
        """Train, with the weights so far written every SAVE_EVERY steps, so that a run that is cut off leaves
        something.
        """
        torch.manual_seed(self.seed)
        torch.set_float32_matmul_precision("high")
        torch.backends.cuda.enable_cudnn_sdp(False)  # it plans anew for every shape
        model, random = new_model(self.name).to(self.device).train(), torch.Generator().manual_seed(self.seed)
        optimizer = torch.optim.AdamW(
            model.parameters(),
            lr=self.peak,
            betas=(0.9, 0.98),
            weight_decay=0.02,
            fused=self.device == "cuda",
        )
        started, recent = time.monotonic(), []
        for step in range(1, self.steps + 1):
            progress = max(step / self.steps, (time.monotonic() - started) / 60 / self.minutes)
            recent.append(
                self._update(
                    model,
                    optimizer,
                    partial(material.loss, model, self.rows, random, progress),
                    rate(progress),
                )
            )
            if step % 100 == 0 or progress >= 1:
                row = {
                    "step": step,
                    "loss": round(torch.stack(recent).mean().item(), 4),
                    "seconds": round(time.monotonic() - started),
                }
                print(json.dumps(row), file=log, flush=True)
                print(json.dumps(row), flush=True)
                recent = []
            if progress >= 1:
                break
            if step % SAVE_EVERY == 0:
                save_weights(model, self.name, self.output)
        print(f"{(time.monotonic() - started) / 60:.1f} minutes of training", file=log, flush=True)
        return model.eval()

    def _update(
        self,
        model: PreTrainedModel,
        optimizer: torch.optim.Optimizer,
        loss: Callable[[], Tensor],
        share: float,
    ) -> Tensor:
        for group in optimizer.param_groups:
            group["lr"] = self.peak * share
        with torch.autocast(self.device, torch.bfloat16, enabled=self.device == "cuda"):
            value = loss()
        value.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return value.detach()


def main() -> None:
    """Make texts, train, write the checkpoint and training.log."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", choices=list(PLANS))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--steps", type=int, help="default: the model's plan")
    parser.add_argument("--batch", type=int, help="rows of a step; default: the model's plan")
    parser.add_argument("--examples", type=int, help="texts to draw from; default: the model's plan")
    parser.add_argument(
        "--minutes",
        type=float,
        default=60.0,
        help="end after so many, with the learning rate decayed in time",
    )
    parser.add_argument(
        "--output",
        type=Path,
        help="default: miniatures/MODEL; the tokenizer there is used, or made if there is none",
    )
    arguments = parser.parse_args()
    logging.disable_progress_bar()
    name, device = arguments.model, "cuda" if torch.cuda.is_available() else "cpu"
    output = arguments.output or Path("miniatures") / name
    steps, rows, examples, peak = PLANS[name]
    if not (output / "tokenizer.json").exists():
        make_tokenizer(name, output)
    training = Training(
        name,
        arguments.seed,
        arguments.steps or steps,
        arguments.batch or rows,
        peak,
        arguments.minutes,
        device,
        output,
    )
    started = time.monotonic()
    material = (Stream if name == "gpt2" else Pairs).make(
        name, output, arguments.examples or examples, arguments.seed, device
    )
    with (output / "training.log").open("w") as log:
        print(
            f"seed {training.seed}, {training.rows} rows a step, texts made in "
            f"{time.monotonic() - started:.0f} s",
            file=log,
            flush=True,
        )
        save_weights(training.run(material, log), name, output)


if __name__ == "__main__":
    main()
