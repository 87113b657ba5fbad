"""What stands before TensorRT-LLM's own engine: the picture encoder, in TensorRT."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .encoder import TensorRtEncoder


def load_encoder(engine: Path, parameters: Mapping[str, Any], graph: str) -> TensorRtEncoder:
    """The encoder of an engine folder; `graph`: there is only that of pictures."""
    from .encoder import TensorRtEncoder

    return TensorRtEncoder(engine)
