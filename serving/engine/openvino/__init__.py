"""The OpenVINO engine, for x86-64 CPUs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .encoder import OpenVinoEncoder
    from .runtime import OpenVinoRuntime


def load(engine: Path, parameters: Mapping[str, Any]) -> OpenVinoRuntime:
    """Load the runtime of an engine folder."""
    from .runtime import OpenVinoRuntime

    return OpenVinoRuntime(engine)


def load_encoder(engine: Path, parameters: Mapping[str, Any], graph: str) -> OpenVinoEncoder:
    """Load an encoder of an engine folder that has only encoders."""
    from .encoder import OpenVinoEncoder

    return OpenVinoEncoder(engine, parameters, graph=graph)
