"""Train mini-clip from nothing: `python -m miniatures.training.pictures.train --seed 1
--output miniatures/clip`.

Pictures are made on all cores first and kept on the device; minutes on one GPU. On a CPU, `--steps 200
--batch 64 --pictures 6000` shows that the loss falls. Needs torch, transformers, numpy and Pillow.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from pathlib import Path
from typing import TextIO

import torch
from torch import Tensor
from torch.nn import functional
from transformers import CLIPConfig, CLIPModel

from build.pictures import DEVIATION, MEAN

from ..course import Course, decaying, save_half, say
from .corpus import Corpus, make_corpus, tokenizer_of
from .evaluate import PicturePeer, recalls
from .museum import museum
from .vocabulary import POSITIONS, make_tokenizer

SIZE = 96


def new_model(vocabulary: int) -> CLIPModel:
    """4.6 million random weights."""
    tower = {"hidden_size": 192, "num_attention_heads": 3, "intermediate_size": 768, "projection_dim": 128}
    picture = {**tower, "num_hidden_layers": 6, "image_size": SIZE, "patch_size": 8}
    ends = {"bos_token_id": vocabulary - 2, **dict.fromkeys(("eos_token_id", "pad_token_id"), vocabulary - 1)}
    text = {**tower, "num_hidden_layers": 4, "vocab_size": vocabulary, "max_position_embeddings": POSITIONS}
    config = CLIPConfig(text_config={**text, **ends}, vision_config=picture, projection_dim=128)
    return CLIPModel(config)


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


def vectors(model: CLIPModel, pictures: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
    """Vectors of length 1 of pictures uint8 [n, size, size, 3] and of captions, ids [n, longest], float32."""
    found = (
        model.get_image_features(pixel_values=normalized(pictures)),
        model.get_text_features(input_ids=ids, attention_mask=torch.ones_like(ids)),
    )
    seen, read = (functional.normalize(one.pooler_output.float(), dim=-1) for one in found)
    return seen, read


def train(course: Course, corpus: Corpus, output: Path, log: TextIO) -> CLIPModel:
    """Train, with the weights so far written into `output`."""
    random = course.begin()
    model = new_model(tokenizer_of(output).get_vocab_size()).to(course.device)
    material = tuple(torch.from_numpy(part).to(course.device) for part in (corpus.pictures, corpus.ids))

    def loss(_: float) -> Tensor:
        chosen = torch.randint(len(corpus.ids), (course.rows,), generator=random).to(course.device)
        pictures, ids = (part[chosen] for part in material)
        with course.autocast():
            seen, read = vectors(model, pictures, ids.long())
        return contrast(seen, read, model.logit_scale, ids)

    optimizer = course.optimizer(decaying(model.parameters(), 0.05), 0.0)
    course.run(optimizer, loss, lambda: save(model, output), log)
    return model.eval()


# preprocessor_config.json, as CLIPImageProcessor reads it.
PROCESSOR = {
    "image_processor_type": "CLIPImageProcessor",
    **dict.fromkeys(("do_resize", "do_center_crop", "do_rescale", "do_normalize", "do_convert_rgb"), True),
    "size": {"shortest_edge": SIZE},
    "crop_size": {"height": SIZE, "width": SIZE},
    "resample": 3,
    "rescale_factor": 1 / 255,
    "image_mean": MEAN,
    "image_std": DEVIATION,
}


def save(model: CLIPModel, folder: Path) -> None:
    """Config, preprocessor and weights (float16) as transformers reads them."""
    save_half(model, folder)
    (folder / "preprocessor_config.json").write_text(json.dumps(PROCESSOR, indent=2) + "\n", "utf-8")


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
        made = f"{len(corpus.ids)} pictures made in {time.monotonic() - started:.0f} s"
        say(log, f"seed {given.seed}, {given.batch} rows a step, {made}")
        course = Course(given.seed, given.steps, given.batch, given.rate, given.minutes, device)
        model = train(course, corpus, given.output, log)
        save(model, given.output)
        say(log, json.dumps(next(recalls(PicturePeer(given.output), museum()))))


if __name__ == "__main__":
    main()
