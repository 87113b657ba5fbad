"""Train mini-llava or mini-blip2: `python -m miniatures.training.answers.train llava --seed 1 --output
miniatures/llava`.

Pictures are made on all cores first; then a batch of dialogues is a step. On a GPU everything learns. On a
CPU mini-llava's eyes stay as mini-clip's are, so each picture is looked at once and kept as what the
projector reads; `--minutes` ends a run in time, with the learning rate brought down until then.
"""

from __future__ import annotations

import argparse
import json
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, TextIO

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from ..course import Course, decaying, say
from ..pictures.train import PROCESSOR as CLIP_PROCESSOR
from ..pictures.train import normalized
from .corpus import IGNORED, Corpus, make_corpus, tokenizer_of
from .models import PATCH, QUERIES, decoder_of, embedded, new_model, rows_of, seen
from .pictures import SIZE
from .vocabulary import PLACEHOLDER, SPECIAL, make_tokenizer


def loss_of(model: Any, ids: Tensor, targets: Tensor, rows: Tensor, placeholder: int) -> Tensor:
    """The mean cross entropy of the answers' tokens."""
    body, head = decoder_of(model)
    hidden = body(inputs_embeds=embedded(model, ids, rows, placeholder), use_cache=False).last_hidden_state
    # Answers stand after the picture: what says token i is the row of token i - 1, from the end.
    before = hidden[:, -ids.shape[1] :][:, :-1]
    wanted = targets[:, 1:]
    at = wanted != IGNORED
    return functional.cross_entropy(head(before[at]).float(), wanted[at])


class Dialogues:
    """Batches of dialogues about a corpus's pictures; every epoch asks other questions, which are made while
    the last ones are learnt.
    """

    def __init__(self, kind: str, corpus: Corpus, folder: Path, seed: int, workers: int | None) -> None:
        self.epoch = 0
        self.order = torch.empty(0, dtype=torch.long)
        self._ahead = ThreadPoolExecutor(1)
        self._make = partial(make_corpus, kind, folder, len(corpus.ids), seed, workers)
        self._due = self._ahead.submit(lambda: corpus)

    def batch(self, rows: int, random: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
        """Which pictures, int64 [rows], and their dialogues' ids and targets, int64 [rows, n]."""
        if len(self.order) < rows:
            self.corpus, self.epoch = self._due.result(), self.epoch + 1
            self._due = self._ahead.submit(self._make, epoch=self.epoch)
            self.order = torch.randperm(len(self.corpus.ids), generator=random)
        chosen, self.order = self.order[:rows], self.order[rows:]
        parts = (self.corpus.ids, self.corpus.targets)
        ids, targets = (torch.from_numpy(part[chosen.numpy()]).long() for part in parts)
        return chosen, ids, targets

    def close(self) -> None:
        """No more are made."""
        self._ahead.shutdown(cancel_futures=True)


def train(
    kind: str, course: Course, corpus: Corpus, output: Path, log: TextIO, workers: int | None = None
) -> Any:
    """Train, with the weights so far written into `output`."""
    random = course.begin()
    tokenizer = tokenizer_of(output)
    model, placeholder = new_model(kind, tokenizer).to(course.device), tokenizer.token_to_id("<image>")
    pictures = prepared(model, kind, corpus.pictures, course.device)
    dialogues = Dialogues(kind, corpus, output, course.seed, workers)

    def loss(_: float) -> Tensor:
        chosen, ids, targets = dialogues.batch(course.rows, random)
        some = pictures[chosen.to(pictures.device)].to(course.device)
        with course.autocast():
            rows = rows_of(model, some)
            return loss_of(model, ids.to(course.device), targets.to(course.device), rows, placeholder)

    learning = [one for one in model.parameters() if one.requires_grad]
    optimizer = course.optimizer(decaying(learning, 0.05), 0.0)
    course.run(optimizer, loss, lambda: save(kind, model, output), log)
    dialogues.close()
    return model.eval()


@torch.no_grad()
def prepared(model: Any, kind: str, pictures: np.ndarray, device: str) -> Tensor:
    """Pictures on the device, or what the frozen eyes of mini-llava see of them (float16)."""
    whole = torch.from_numpy(pictures)
    if device != "cpu" or kind != "llava":
        return whole.to(device)
    model.model.vision_tower.requires_grad_(requires_grad=False)
    patches = (SIZE // model.config.vision_config.patch_size) ** 2
    kept = torch.empty(len(whole), patches, model.config.vision_config.hidden_size, dtype=torch.float16)
    for at in range(0, len(whole), 64):
        kept[at : at + 64] = seen(model, normalized(whole[at : at + 64])).half()
    return kept


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
    "llava": CLIP_PROCESSOR,
    "blip2": {
        **{name: value for name, value in CLIP_PROCESSOR.items() if "crop" not in name},
        "image_processor_type": "BlipImageProcessor",
        "size": {"height": SIZE, "width": SIZE},
    },
}


def save(kind: str, model: Any, folder: Path) -> None:
    """Configuration, processor and weights (float16) as transformers reads them; a tied head is written too,
    as in the checkpoints here.
    """
    model.save_pretrained(folder, state_dict={name: one.half() for name, one in model.state_dict().items()})
    (folder / "model.safetensors").chmod(0o644)  # safetensors 0.8 leaves it to its owner; servers read it
    config = json.loads((folder / "config.json").read_text("utf-8")) | {"dtype": "float16"}
    for part in config.values():
        if isinstance(part, dict):
            part.pop("dtype", None)
    files = {"config": config, "preprocessor_config": IMAGES[kind], "processor_config": PROCESSORS[kind]}
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content, indent=2) + "\n", "utf-8")


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
        made = f"{len(corpus.ids)} pictures made in {time.monotonic() - started:.0f} s"
        say(log, f"{given.kind}, seed {given.seed}, {device}, {given.batch} dialogues a step, {made}")
        course = Course(
            given.seed, given.steps, given.batch, given.rate, given.minutes, device, warm=0.03, log_every=50
        )
        model = train(given.kind, course, corpus, given.output, log, given.workers)
        save(given.kind, model, given.output)


if __name__ == "__main__":
    main()
