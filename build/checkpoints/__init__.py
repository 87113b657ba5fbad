"""Checkpoints as transformers loads them, turned into serving's architectures (the builder only).

A family's module has `ARCHITECTURE` (transformers' class), `random_model(name)` for true shapes with random
weights, `shape(model)`, `weights(model)` under the names of serving/architectures, and `facts(model,
arguments)` for engine.json.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from serving.architectures.transformer import Model

FAMILIES = ("whisper", "t5", "bart", "gpt2")


def family(name: str) -> Any:
    """Its module."""
    return import_module(f"{__name__}.{name}")


def load(name: str, weights: str, seed: int = 0) -> tuple[Any, Model]:
    """Transformers' model and ours on the same weights, float32: a folder in Hugging Face layout, or
    random:<architecture>.
    """
    its, (kind, _, random) = family(name), weights.partition("random:")
    torch.manual_seed(seed)
    theirs = (
        its.random_model(random) if random else its.ARCHITECTURE.from_pretrained(kind, dtype=torch.float32)
    )
    theirs.eval()
    ours = Model(its.shape(theirs))
    ours.load_state_dict(its.weights(theirs))
    return theirs, ours.eval()


def renamed(
    state: Mapping[str, torch.Tensor], rules: Sequence[tuple[str, str]], prefix: str = ""
) -> dict[str, torch.Tensor]:
    """Tensors under our names: of the rules (pattern, replacement) each one applies in turn; what has no
    rule's name at its end is left out.
    """
    found = {}
    for name, tensor in state.items():
        ours = name.removeprefix(prefix)
        for pattern, replacement in rules:
            ours = re.sub(pattern, replacement, ours)
        found[ours] = tensor
    return found


def stored_in_half(weights: Path) -> bool:
    """Whether a folder's weights are float16."""
    import json

    config = json.loads((weights / "config.json").read_text("utf-8"))
    return str(config.get("dtype", config.get("torch_dtype", "float32"))) == "float16"
