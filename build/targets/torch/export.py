"""A checkpoint for the torch engine: `python -m build.targets.torch.export --family F --weights FOLDER
--output FOLDER` writes model.safetensors under the names of serving/architectures, architecture.json,
engine.json and the tokenizer's files.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from safetensors.torch import save_file

from build import checkpoints
from build.checkpoints.arguments import Arguments, parse, write_tokenizer
from serving.engine.torch.runtime import WEIGHTS


def export(arguments: Arguments) -> None:
    """Write the engine folder. Weights that are tied are written twice."""
    torch.set_grad_enabled(False)
    theirs, ours = checkpoints.load(arguments.family, arguments.weights, arguments.seed)
    dtype = getattr(torch, arguments.precision)
    state = {name: tensor.to(dtype).clone().contiguous() for name, tensor in ours.state_dict().items()}
    save_file(state, arguments.output / WEIGHTS)
    ours.shape.save(arguments.output)
    write_tokenizer(arguments, ours.shape.vocabulary)
    facts = checkpoints.family(arguments.family).facts(theirs, arguments)
    replace(facts, takes_samples=facts.mels > 0).save(arguments.output)


if __name__ == "__main__":
    export(parse(__doc__))
