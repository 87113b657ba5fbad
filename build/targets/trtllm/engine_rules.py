"""Check what only a finished engine folder shows, and size the memory that its pictures need.

The engine model's configuration needs no check of its own: `engine_config.fill` writes it from parameters
that `limits.check_possible` has accepted, into a template that has every required placeholder.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from conch.bundle import PicturePrompt

from ...recipes import Recipe
from .limits import prompt_rows, world_size


def findings(recipe: Recipe, engine: Path) -> Iterator[str]:
    """Return what is wrong with an engine folder, one sentence each with the remedy; nothing if it may be
    served. TensorRT-LLM's backend would start without an engine that is missing.
    """
    ranks = world_size(recipe.parameters)
    for name in ("encoder", "decoder") if recipe.kind == "encoder-decoder" else ("decoder",):
        for rank in range(ranks):
            if not (engine / name / f"rank{rank}.engine").is_file():
                yield (
                    f"{engine / name} lacks rank{rank}.engine of {ranks}; build the bundle again with "
                    "the same TP_SIZE and PP_SIZE"
                )
    if not prompt_rows(recipe.parameters):
        return
    wanted = recipe.parameters["visual_features"]
    if (found := PicturePrompt.load(engine).rows) != wanted:
        yield (
            f"the checkpoint makes {found} rows of a picture, visual_features is {wanted}; "
            f"set visual_features = {found} in catalog.toml"
        )
    if not (engine / "visual" / "model.engine").is_file():
        yield "engine/visual/model.engine is missing, which looks at pictures; build the bundle again"


def cuda_pool_bytes(recipe: Recipe, engine: Path) -> int:
    """Return the size for tritonserver's --cuda-memory-pool-byte-size, memory for tensors that stay on the
    GPU between models: room for the prompt tables of a full batch in 2-byte numbers, once as input and once
    as output, rounded up to MiB; 0 where no pictures are read. Conch's own façades hand over tables in host
    memory; the pool is for clients that pass theirs on the GPU.
    """
    if not (rows := prompt_rows(recipe.parameters)):
        return 0
    config = json.loads((engine / "decoder" / "config.json").read_text("utf-8"))
    batch, width = config["build_config"]["max_batch_size"], config["pretrained_config"]["hidden_size"]
    mebibytes: int = max(64, -(-2 * 2 * batch * rows * width // (1 << 20)))
    return mebibytes << 20
