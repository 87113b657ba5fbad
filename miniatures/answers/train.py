"""Train mini-llava or mini-blip2: `python -m miniatures.answers.train llava --seed 1 --output
miniatures/llava`.

Pictures are made on all cores first; then a batch of dialogues is a step. On a GPU everything learns. On a
CPU mini-llava's eyes stay as mini-clip's are, so each picture is looked at once and kept as what the
projector reads; `--minutes` ends a run in time, with the learning rate brought down until then.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from .corpus import IGNORED, Corpus, make_corpus, new_dialogues, tokenizer_of
from .models import (
    DEVIATION,
    MEAN,
    PATCH,
    QUERIES,
    decoder_of,
    embedded,
    new_model,
    normalized,
    rows_of,
    seen,
)
from .pictures import SIZE
from .vocabulary import PLACEHOLDER, SPECIAL, make_tokenizer

SAVE_EVERY, LOG_EVERY = 500, 50


def rate(progress: float, warm: float = 0.03) -> float:
    """Warm-up and cosine decay to nearly nothing."""
    return min(progress / warm, 1.0) * (0.5 + 0.5 * math.cos(math.pi * min(progress, 1.0))) + 1e-3


def loss_of(model: Any, ids: Tensor, targets: Tensor, rows: Tensor, placeholder: int) -> Tensor:
    """The mean cross entropy of the answers' tokens."""
    body, head = decoder_of(model)
    hidden = body(inputs_embeds=embedded(model, ids, rows, placeholder), use_cache=False).last_hidden_state
    # Answers stand behind the picture: what says token i is the row of token i - 1, from the end.
    before = hidden[:, -ids.shape[1] :][:, :-1]
    wanted = targets[:, 1:]
    at = wanted != IGNORED
    return functional.cross_entropy(head(before[at]).float(), wanted[at])


@dataclass
class Training:
    """One run: `steps` at most, `minutes` at most (the learning rate decays by whichever is nearer to its
    end).
    """

    kind: str
    seed: int
    steps: int
    rows: int
    peak: float
    minutes: float
    device: str
    output: Path
    workers: int | None = None

    def run(self, corpus: Corpus, log: TextIO) -> Any:
        """Train, with the weights so far written every SAVE_EVERY steps. Every epoch asks other questions."""
        torch.manual_seed(self.seed)
        torch.set_float32_matmul_precision("high")
        tokenizer = tokenizer_of(self.output)
        model, placeholder = new_model(self.kind, tokenizer).to(self.device), tokenizer.token_to_id("<image>")
        pictures = self._prepared(model, corpus.pictures)
        optimizer = self._optimizer(model)
        random, started, recent = torch.Generator().manual_seed(self.seed), time.monotonic(), []
        order, epoch, ahead = torch.empty(0, dtype=torch.long), 0, ThreadPoolExecutor(1)
        due = ahead.submit(lambda: (corpus.ids, corpus.targets))
        for step in range(1, self.steps + 1):
            progress = max(step / self.steps, (time.monotonic() - started) / 60 / self.minutes)
            if len(order) < self.rows:
                (ids, targets), epoch = due.result(), epoch + 1
                due = ahead.submit(
                    new_dialogues, self.kind, self.output, len(corpus.ids), self.seed, epoch, self.workers
                )
                order = torch.randperm(len(ids), generator=random)
            chosen, order = order[: self.rows], order[self.rows :]
            own, right = (torch.from_numpy(part[chosen.numpy()]).long() for part in (ids, targets))
            some = pictures[chosen.to(pictures.device)].to(self.device)
            for group in optimizer.param_groups:
                group["lr"] = self.peak * rate(progress)
            with torch.autocast(self.device, torch.bfloat16, enabled=self.device == "cuda"):
                rows = rows_of(model, some)
                loss = loss_of(model, own.to(self.device), right.to(self.device), rows, placeholder)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            recent.append(loss.detach())
            if step % LOG_EVERY == 0 or progress >= 1:
                seconds = round(time.monotonic() - started)
                mean = torch.stack(recent).mean().item()
                report(log, {"step": step, "loss": round(mean, 4), "seconds": seconds})
                recent = []
            if progress >= 1:
                break
            if step % SAVE_EVERY == 0:
                save(self.kind, model, self.output)
        ahead.shutdown(cancel_futures=True)
        return model.eval()

    def _optimizer(self, model: Any) -> torch.optim.Optimizer:
        learning = [one for one in model.parameters() if one.requires_grad]
        groups = [
            {"params": [p for p in learning if (p.ndim > 1) == decays], "weight_decay": decay}
            for decays, decay in ((True, 0.05), (False, 0.0))
        ]
        return torch.optim.AdamW(groups, self.peak, betas=(0.9, 0.98), fused=self.device == "cuda")

    @torch.no_grad()
    def _prepared(self, model: Any, pictures: np.ndarray) -> Tensor:
        """Pictures on the device, or what the frozen eyes of mini-llava see of them (float16)."""
        whole = torch.from_numpy(pictures)
        if self.device != "cpu" or self.kind != "llava":
            return whole.to(self.device)
        model.model.vision_tower.requires_grad_(requires_grad=False)
        patches = (SIZE // model.config.vision_config.patch_size) ** 2
        kept = torch.empty(len(whole), patches, model.config.vision_config.hidden_size, dtype=torch.float16)
        for at in range(0, len(whole), 64):
            kept[at : at + 64] = seen(model, normalized(whole[at : at + 64])).half()
        return kept


def report(log: TextIO, row: dict[str, Any]) -> None:
    """A line of JSON for the log and for whoever looks."""
    print(json.dumps(row), file=log, flush=True)
    print(json.dumps(row), flush=True)


PROCESSORS: dict[str, dict[str, Any]] = {
    "llava": {
        "processor_class": "LlavaProcessor",
        "patch_size": PATCH,
        "vision_feature_select_strategy": "default",
        "num_additional_image_tokens": 1,
        "image_token": PLACEHOLDER,
    },
    "blip2": {"processor_class": "Blip2Processor", "num_query_tokens": QUERIES},
}
IMAGES: dict[str, dict[str, Any]] = {
    "llava": {
        "image_processor_type": "CLIPImageProcessor",
        "do_center_crop": True,
        "size": {"shortest_edge": SIZE},
        "crop_size": {"height": SIZE, "width": SIZE},
    },
    "blip2": {"image_processor_type": "BlipImageProcessor", "size": {"height": SIZE, "width": SIZE}},
}
SHARED = {
    **dict.fromkeys(("do_resize", "do_rescale", "do_normalize", "do_convert_rgb"), True),
    "resample": 3,
    "rescale_factor": 1 / 255,
    "image_mean": MEAN,
    "image_std": DEVIATION,
}


def save(kind: str, model: Any, folder: Path) -> None:
    """Configuration, processor and weights (float16) as transformers reads them."""
    model.save_pretrained(folder, state_dict={name: one.half() for name, one in model.state_dict().items()})
    (folder / "model.safetensors").chmod(0o644)  # safetensors 0.8 leaves it to its owner; servers read it
    config = json.loads((folder / "config.json").read_text("utf-8")) | {"dtype": "float16"}
    for part in config.values():
        if isinstance(part, dict):
            part.pop("dtype", None)
    files = {
        "config.json": config,
        "preprocessor_config.json": IMAGES[kind] | SHARED,
        "processor_config.json": PROCESSORS[kind],
    }
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content, indent=2) + "\n", "utf-8")


def main() -> None:
    """Make pictures, train, write the checkpoint and training.log."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=[*SPECIAL])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--steps", type=int, default=30_000)
    parser.add_argument("--batch", type=int, default=256, help="dialogues of a step")
    parser.add_argument("--pictures", type=int, default=160_000, help="to draw from")
    parser.add_argument("--rate", type=float, default=1e-3, help="the highest learning rate")
    parser.add_argument("--minutes", type=float, default=60.0, help="of training at most")
    parser.add_argument("--workers", type=int, default=None, help="processes that make pictures")
    parser.add_argument("--output", type=Path, required=True)
    given = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if not (given.output / "tokenizer.json").exists():
        make_tokenizer(given.kind, given.output)
    started = time.monotonic()
    corpus = make_corpus(given.kind, given.output, given.pictures, given.seed, given.workers)
    with (given.output / "training.log").open("w") as log:
        made = time.monotonic() - started
        first = (
            f"{given.kind}, seed {given.seed}, {device}, {given.batch} dialogues a step, {len(corpus.ids)} "
            f"pictures made in {made:.0f} s"
        )
        print(first, file=log, flush=True)
        print(first, flush=True)
        training = Training(
            given.kind,
            given.seed,
            given.steps,
            given.batch,
            given.rate,
            given.minutes,
            device,
            given.output,
            given.workers,
        )
        model = training.run(corpus, log)
        save(given.kind, model, given.output)


if __name__ == "__main__":
    main()
