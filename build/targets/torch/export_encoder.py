"""Export encoders (embedding models) for the torch engine: `python -m build.targets.torch.export_encoder
--family F --weights FOLDER --output FOLDER` writes model.safetensors under the names of
serving/architectures, architecture.json, engine.json, for pictures picture.json, and the tokenizer's files.
"""

from __future__ import annotations

from pathlib import Path

import torch

from build.checkpoints import encoders
from serving.engine.torch.runtime import WEIGHTS

from .export import save


def export(family: str, weights: Path, output: Path, precision: str, longest: int) -> None:
    """Write the engine folder."""
    model = encoders.load(family, weights, output, longest)
    model.shape.save(output)
    save(model.to(getattr(torch, precision)), output / WEIGHTS)


def main() -> None:
    """Run the command line."""
    parser = encoders.parser(__doc__)
    parser.add_argument("--precision", choices=["float16", "bfloat16", "float32"], default="float16")
    given = parser.parse_args()
    export(given.family, given.weights, given.output, given.precision, given.max_input_len)


if __name__ == "__main__":
    main()
