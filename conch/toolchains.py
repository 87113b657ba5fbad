"""Register and find the toolchain of each target."""

from __future__ import annotations

import os
from importlib import import_module

from .driver import TORCH
from .nvidia_images import ImageToolchain, TensorRtImage, TensorRtLlmImage
from .toolchain import Toolchain, ToolchainError

EXPORTERS = ("torch", "transformers", "tokenizers")
_TOOLCHAINS = {
    "torch": Toolchain("torch", making=(*EXPORTERS, "safetensors"), driver=TORCH),
    "trtllm": ImageToolchain(
        "trtllm", ("tensorrt_llm", "tensorrt"), image=TensorRtLlmImage, base="TRTLLM_BASE"
    ),
    "tensorrt": ImageToolchain("tensorrt", ("tensorrt",), image=TensorRtImage, base="NVIDIA_BASE"),
    "openvino": Toolchain("openvino", ("openvino",), EXPORTERS),
}


def find(target: str) -> Toolchain:
    """Find the toolchain of a target. Modules named in CONCH_TARGETS, separated by commas, may add more with
    `register`.

    Raises:
        ToolchainError: there is none.
    """
    for module in filter(None, os.environ.get("CONCH_TARGETS", "").split(",")):
        import_module(module)
    if target not in _TOOLCHAINS:
        raise ToolchainError(f"TARGET {target!r} is unknown; choose one of: {', '.join(_TOOLCHAINS)}")
    return _TOOLCHAINS[target]


def register(toolchain: Toolchain) -> None:
    """Add a toolchain."""
    _TOOLCHAINS[toolchain.name] = toolchain
