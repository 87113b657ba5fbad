"""PyTorch on any recent NVIDIA GPU, without a compile step."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from conch.bundle import Serving
from conch.gpus import apart, assigned, gpus

from ...recipes import Recipe
from .. import EXPORTERS, Target


class Torch(Target):
    """Keeps weights as they are and makes kernels when a server starts. On a machine without a GPU it runs on
    the CPU, slowly.
    """

    name = "torch"
    code = ("build/targets/torch", "build/assets", *EXPORTERS)

    def ranks(self, recipe: Recipe) -> int:
        return int(recipe.parameters.get("tp_size", 1))

    def serving(self, recipe: Recipe, engine: Path) -> Serving:
        return Serving(self.ranks(recipe))

    def gpus(self, count: int, environment: Mapping[str, str]) -> list[str]:
        """See Target: instances beyond the number of GPUs share them in turn."""
        if apart(environment):  # the machine that plans may have no GPU
            return assigned(count, environment)
        found = len(gpus())
        if not found:
            return super().gpus(count, environment)
        return [environment.get(f"TRITON_{i}_GPUS") or str(i % found) for i in range(count)]


TARGET = Torch()
