"""The OpenVINO engine: x86-64 CPUs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .encoder import OpenVinoEncoder
    from .runtime import OpenVinoRuntime


def load(engine: Path, parameters: Mapping[str, Any]) -> OpenVinoRuntime:
    """The runtime of an engine folder."""
    from .runtime import OpenVinoRuntime

    return OpenVinoRuntime(engine)


def load_encoder(engine: Path, parameters: Mapping[str, Any], graph: str) -> OpenVinoEncoder:
    """An encoder of an engine folder that has nothing else."""
    from .encoder import OpenVinoEncoder

    return OpenVinoEncoder(engine, parameters, graph=graph)
