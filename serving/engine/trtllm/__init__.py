"""The picture encoder, in TensorRT, in front of TensorRT-LLM's own engine."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .encoder import TensorRtEncoder


def load_encoder(engine: Path, parameters: Mapping[str, Any], graph: str) -> TensorRtEncoder:
    """Load the encoder of an engine folder; the only `graph` is that of pictures."""
    from .encoder import TensorRtEncoder

    return TensorRtEncoder(engine)
