"""PyTorch on any recent NVIDIA GPU, without a compile step."""

from __future__ import annotations

from collections.abc import Mapping

from conch.gpus import assigned, gpus

from ..plain import Plain


class Torch(Plain):
    """Weights are kept as they are; kernels are made when a server starts. On a machine without a GPU it
    runs on the CPU, slowly.
    """

    name = "torch"
    code = ("build/targets/torch", "build/checkpoints", "build/assets", "serving/architectures")
    making = ("torch", "transformers", "tokenizers", "safetensors")

    def gpus(self, count: int, environment: Mapping[str, str]) -> list[str]:
        """See Target."""
        return assigned(count, environment) if gpus() else super().gpus(count, environment)


TARGET = Torch()
