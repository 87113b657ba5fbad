"""An embedding model to OpenVINO: `python -m build.targets.openvino.export_embedder --weights FOLDER --output
FOLDER` writes encoder.xml, engine.json and the tokenizer's files. The graph maps ids and mask [texts, n] to
float32 [texts, dimensions].
"""

from __future__ import annotations

import shutil
from pathlib import Path

import openvino as ov
import torch

from build.checkpoints import minilm
from build.checkpoints.arguments import TOKENIZER
from serving.architectures.bert import Embedder

from .embedder import command_line
from .stateful import compress_int8, rename


def graph(model: Embedder) -> ov.Model:
    """Trace it for any number of texts of any length."""
    ids = torch.ones(2, 5, dtype=torch.long)
    made = ov.convert_model(model, example_input=(ids, ids))
    rename(made, [("ids", [-1, -1]), ("mask", [-1, -1])], ["embedding"])
    return made


def export(weights: Path, output: Path, compress: str, longest: int) -> None:
    """Write the engine folder."""
    torch.set_grad_enabled(False)
    theirs, ours = minilm.load(weights)
    made = graph(ours)
    if compress == "int8":
        compress_int8(made)
    ov.save_model(made, output / "encoder.xml", compress_to_fp16=False)
    for file in TOKENIZER:
        if (weights / file).exists():
            shutil.copy(weights / file, output / file)
    minilm.facts(theirs, weights, longest).save(output)


if __name__ == "__main__":
    command_line(__doc__, export)
