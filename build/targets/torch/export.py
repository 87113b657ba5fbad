"""Export a checkpoint for the torch engine: `python -m build.targets.torch.export --family F --weights FOLDER
--output FOLDER` writes model.safetensors under the names of serving/architectures, architecture.json,
engine.json and the tokenizer's files; for models that read pictures picture.json, and for those that answer
about them picture.safetensors, picture_architecture.json and picture_prompt.json.
"""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import nn

from build import checkpoints
from build.checkpoints import encoders
from build.checkpoints.arguments import Arguments, parse, write_files
from serving.engine.torch.encoder import PICTURE_WEIGHTS
from serving.engine.torch.runtime import WEIGHTS


def save(model: nn.Module, file: Path) -> None:
    """Write a module's weights; tied weights are written twice."""
    state = {name: tensor.clone().contiguous() for name, tensor in model.state_dict().items()}
    save_file(state, file)


@torch.no_grad()
def export(arguments: Arguments) -> None:
    """Write the engine folder."""
    dtype = getattr(torch, arguments.precision)
    if arguments.family in encoders.FAMILIES:
        network = encoders.load(
            arguments.family, Path(arguments.weights), arguments.output, arguments.max_input_len
        )
        network.shape.save(arguments.output)
        save(network.to(dtype), arguments.output / WEIGHTS)
        return
    theirs, ours = checkpoints.load(arguments.family, arguments.weights, arguments.seed)
    save(ours.to(dtype), arguments.output / WEIGHTS)
    ours.shape.save(arguments.output)
    if ours.shape.prompt_table:
        pictures = checkpoints.picture_encoder(arguments.family, theirs)
        pictures.shape.save(arguments.output)
        save(pictures.lower(dtype), arguments.output / PICTURE_WEIGHTS)
    write_files(arguments, theirs, ours.shape, takes_samples=ours.shape.mels > 0)


if __name__ == "__main__":
    export(parse(__doc__))
