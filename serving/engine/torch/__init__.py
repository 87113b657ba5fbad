"""The torch engine, for any NVIDIA GPU that torch supports, with CUDA graphs and without a compile step;
without a GPU it runs on torch's CPU device, which the tests use.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..runtime import Runtime
    from .encoder import TorchEncoder


def load(engine: Path, parameters: Mapping[str, Any]) -> Runtime:
    """Load the runtime of an engine folder, on one GPU or on `tp_size` of them."""
    if int(parameters.get("tp_size", 1)) > 1:
        from .ranks import LeadingRuntime

        return LeadingRuntime(engine, parameters)
    from .runtime import TorchRuntime

    return TorchRuntime(engine, parameters)


def load_encoder(engine: Path, parameters: Mapping[str, Any], graph: str) -> TorchEncoder:
    """Load an encoder of an engine folder that has only encoders."""
    from .encoder import TorchEncoder

    return TorchEncoder(engine, parameters, graph)
