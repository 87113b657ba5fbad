"""A CLIP to OpenVINO: `python -m build.targets.openvino.export_clip --weights FOLDER --output FOLDER` writes
text.xml, image.xml, engine.json, picture.json and the tokenizer's files. The graphs map ids and mask [texts,
n], or pixels [pictures, 3, size, size], to float32 [rows, dimensions].
"""

from __future__ import annotations

import shutil
from pathlib import Path

import openvino as ov
import torch

from build.checkpoints import clip
from build.checkpoints.arguments import TOKENIZER
from build.pictures import cropped
from serving.architectures.clip import Clip

from .embedder import command_line
from .stateful import compress_int8, rename


def graphs(model: Clip) -> dict[str, ov.Model]:
    """Trace both for any number of rows, texts of any length."""
    ids, size = torch.ones(2, 5, dtype=torch.long), model.shape.size
    text = ov.convert_model(model.text, example_input=(ids, ids))
    rename(text, [("ids", [-1, -1]), ("mask", [-1, -1])], ["embedding"])
    image = ov.convert_model(model.picture, example_input=(torch.zeros(2, 3, size, size),))
    rename(image, [("pixels", [-1, 3, size, size])], ["embedding"])
    return {"text": text, "image": image}


def export(weights: Path, output: Path, compress: str, longest: int) -> None:
    """Write the engine folder."""
    torch.set_grad_enabled(False)
    model = clip.load(weights)
    cropped(weights, model.shape.size).save(output)
    for name, made in graphs(model).items():
        if compress == "int8":
            compress_int8(made)
        ov.save_model(made, output / f"{name}.xml", compress_to_fp16=False)
    for file in TOKENIZER:
        if (weights / file).exists():
            shutil.copy(weights / file, output / file)
    clip.facts(model.shape, longest).save(output)


if __name__ == "__main__":
    command_line(__doc__, export)
