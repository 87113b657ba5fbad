"""The torch engine: any NVIDIA GPU that torch knows, with CUDA graphs and without a compile step; on a
machine without one, torch's CPU device, which the tests use.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .encoder import TorchEncoder
    from .runtime import TorchRuntime


def load(engine: Path, parameters: Mapping[str, Any]) -> TorchRuntime:
    """The runtime of an engine folder."""
    from .runtime import TorchRuntime

    return TorchRuntime(engine, parameters)


def load_encoder(engine: Path, parameters: Mapping[str, Any], graph: str) -> TorchEncoder:
    """An encoder of an engine folder that has nothing else."""
    from .encoder import TorchEncoder

    return TorchEncoder(engine, parameters, graph)
