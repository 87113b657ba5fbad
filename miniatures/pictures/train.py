"""Train mini-clip from nothing: `python -m miniatures.pictures.train --seed 1 --output miniatures/clip`.

Pictures are made on all cores first and kept on the device; minutes on one GPU. On a CPU, `--steps 200
--batch 64 --pictures 6000` shows that the loss falls. Needs torch, numpy, Pillow, safetensors and tokenizers.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.nn import functional

from build.checkpoints.clip import theirs
from serving.architectures.clip import Clip, Shape, Tower

from .corpus import Corpus, make_corpus, tokenizer_of
from .museum import museum, recall
from .vocabulary import POSITIONS, make_tokenizer

# The values that CLIP was published with (preprocessor_config.json of openai/clip-vit-base-patch32).
MEAN, DEVIATION = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
SIZE = 96
SAVE_EVERY, LOG_EVERY = 500, 100


def new_model(vocabulary: int) -> Clip:
    """4.6 million random weights."""
    tower = Tower(width=192, layers=6, heads=3, inner=768)
    text = Tower(width=192, layers=4, heads=3, inner=768)
    model = Clip(Shape(tower, SIZE, 8, text, vocabulary, POSITIONS, vocabulary - 1, dimensions=128))
    for name, weights in model.named_parameters():
        if name.endswith(("places.weight", "words.weight")):
            torch.nn.init.normal_(weights, std=0.02)
        elif name.endswith("bias"):
            torch.nn.init.zeros_(weights)
    return model


def normalized(pictures: Tensor) -> Tensor:
    """Pixels uint8 [n, size, size, 3] as the model reads them."""
    mean, deviation = (torch.tensor(row, device=pictures.device) * 255 for row in (MEAN, DEVIATION))
    return ((pictures.float() - mean) / deviation).permute(0, 3, 1, 2).contiguous()


def contrast(pictures: Tensor, texts: Tensor, scale: Tensor, ids: Tensor) -> Tensor:
    """The mean of both cross entropies of a batch. What another row says in the same words is not wrong."""
    products = pictures @ texts.T * scale.clamp(max=math.log(100)).exp()
    same = (ids[:, None] == ids[None]).all(2)
    same.fill_diagonal_(False)
    products = products.masked_fill(same, -1e4)
    own = torch.arange(len(ids), device=ids.device)
    return (functional.cross_entropy(products, own) + functional.cross_entropy(products.T, own)) / 2


def rate(progress: float, warm: float = 0.04) -> float:
    """Warm-up and cosine decay to nearly nothing."""
    return min(progress / warm, 1.0) * (0.5 + 0.5 * math.cos(math.pi * min(progress, 1.0))) + 1e-3


@dataclass
class Training:
    """One run: `steps` at most, `minutes` at most (the learning rate decays by whichever is nearer to its
    end).
    """

    seed: int
    steps: int
    rows: int
    peak: float
    minutes: float
    device: str
    output: Path

    def run(self, corpus: Corpus, log: TextIO) -> Clip:
        """Train, with the weights so far written every SAVE_EVERY steps."""
        torch.manual_seed(self.seed)
        torch.set_float32_matmul_precision("high")
        model = new_model(tokenizer_of(self.output).get_vocab_size()).to(self.device)
        groups = [
            {"params": [p for p in model.parameters() if (p.ndim > 1) == decays], "weight_decay": decay}
            for decays, decay in ((True, 0.05), (False, 0.0))
        ]
        optimizer = torch.optim.AdamW(groups, self.peak, betas=(0.9, 0.98), fused=self.device == "cuda")
        material = tuple(torch.from_numpy(part).to(self.device) for part in (corpus.pictures, corpus.ids))
        random, started, recent = torch.Generator().manual_seed(self.seed), time.monotonic(), []
        for step in range(1, self.steps + 1):
            progress = max(step / self.steps, (time.monotonic() - started) / 60 / self.minutes)
            chosen = torch.randint(len(corpus.ids), (self.rows,), generator=random).to(self.device)
            recent.append(
                self._update(model, optimizer, *(part[chosen] for part in material), rate(progress))
            )
            if step % LOG_EVERY == 0 or progress >= 1:
                seconds, loss = round(time.monotonic() - started), torch.stack(recent).mean().item()
                report(log, {"step": step, "loss": round(loss, 4), "seconds": seconds})
                recent = []
            if progress >= 1:
                break
            if step % SAVE_EVERY == 0:
                save(model, self.output)
        return model.eval()

    def _update(
        self, model: Clip, optimizer: torch.optim.Optimizer, pictures: Tensor, ids: Tensor, share: float
    ) -> Tensor:
        for group in optimizer.param_groups:
            group["lr"] = self.peak * share
        ids = ids.long()
        with torch.autocast(self.device, torch.bfloat16, enabled=self.device == "cuda"):
            seen, read = model.picture(normalized(pictures)), model.text(ids, torch.ones_like(ids))
        loss = contrast(seen, read, model.scale, ids)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()


@torch.no_grad()
def visited(model: Clip, folder: Path, device: str) -> dict[str, float]:
    """Both recalls at 1 in the museum, in float32."""
    exhibits, tokenizer = museum(), tokenizer_of(folder)
    pictures = np.stack([np.asarray(one.picture.resize((SIZE, SIZE), 3)) for one in exhibits])
    ids = torch.tensor([coded.ids for coded in tokenizer.encode_batch([one.caption for one in exhibits])])
    ids = ids.to(device)
    seen = model.picture(normalized(torch.from_numpy(pictures).to(device))).cpu().numpy()
    read = model.text(ids, torch.ones_like(ids)).cpu().numpy()
    to_picture, to_text = recall(seen, read)
    return {"text to picture": round(to_picture, 4), "picture to text": round(to_text, 4)}


def report(log: TextIO, row: dict[str, float]) -> None:
    """A line of JSON for the log and for whoever looks."""
    print(json.dumps(row), file=log, flush=True)
    print(json.dumps(row), flush=True)


def save(model: Clip, folder: Path) -> None:
    """Config, preprocessor and weights (float16) as transformers' CLIPModel reads them."""
    shape = model.shape
    towers = {
        "vision_config": (shape.picture, {"image_size": shape.size, "patch_size": shape.patch}),
        "text_config": (
            shape.text,
            {
                "vocab_size": shape.vocabulary,
                "max_position_embeddings": shape.positions,
                **dict.fromkeys(("eos_token_id", "pad_token_id"), shape.end_id),
                "bos_token_id": shape.end_id - 1,
            },
        ),
    }
    config = {
        "architectures": ["CLIPModel"],
        "model_type": "clip",
        "dtype": "float16",
        "projection_dim": shape.dimensions,
        **{
            name: {
                "hidden_size": tower.width,
                "num_hidden_layers": tower.layers,
                "num_attention_heads": tower.heads,
                "intermediate_size": tower.inner,
                "hidden_act": tower.activation,
                "layer_norm_eps": tower.epsilon,
                "projection_dim": shape.dimensions,
                **own,
            }
            for name, (tower, own) in towers.items()
        },
    }
    processor = {
        "image_processor_type": "CLIPImageProcessor",
        **dict.fromkeys(
            ("do_resize", "do_center_crop", "do_rescale", "do_normalize", "do_convert_rgb"), True
        ),
        "size": {"shortest_edge": shape.size},
        "crop_size": {"height": shape.size, "width": shape.size},
        "resample": 3,
        "rescale_factor": 1 / 255,
        "image_mean": MEAN,
        "image_std": DEVIATION,
    }
    for name, content in (("config.json", config), ("preprocessor_config.json", processor)):
        (folder / name).write_text(json.dumps(content, indent=2) + "\n", "utf-8")
    weights = {name: tensor.half().cpu().contiguous() for name, tensor in theirs(model.state_dict()).items()}
    save_file(weights, folder / "model.safetensors", {"format": "pt"})


def main() -> None:
    """Make pictures, train, write the checkpoint and training.log."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--batch", type=int, default=1024, help="pictures of a step")
    parser.add_argument("--pictures", type=int, default=240_000, help="to draw from")
    parser.add_argument("--rate", type=float, default=1e-3, help="the highest learning rate")
    parser.add_argument("--minutes", type=float, default=60.0, help="of training at most")
    parser.add_argument("--output", type=Path, default=Path("miniatures/clip"))
    given = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if not (given.output / "tokenizer.json").exists():
        make_tokenizer(given.output)
    started = time.monotonic()
    corpus = make_corpus(given.output, given.pictures, SIZE, given.seed)
    with (given.output / "training.log").open("w") as log:
        made = time.monotonic() - started
        first = (
            f"seed {given.seed}, {given.batch} rows a step, {len(corpus.ids)} pictures made in {made:.0f} s"
        )
        print(first, file=log, flush=True)
        print(first, flush=True)
        training = Training(
            given.seed, given.steps, given.batch, given.rate, given.minutes, device, given.output
        )
        model = training.run(corpus, log)
        save(model, given.output)
        report(log, visited(model, given.output, device))


if __name__ == "__main__":
    main()
