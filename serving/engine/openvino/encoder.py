"""Run an encoder (embedding model) in OpenVINO."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
from numpy.typing import NDArray

from conch.bundle import EngineFacts

from .runtime import GROUP, compile_settings, hardware_precision, this_cpu

# Computed in float32 on any CPU: speakers' thresholds are for that, and bf16 moves log probabilities by 0.15.
FLOAT32 = ("speakers",)


class OpenVinoEncoder:
    """See serving.engine.encoding.EncoderRuntime."""

    tokens_at_once = 2048  # a sixth of a second for MiniLM on two cores; more are no faster for each

    def __init__(
        self,
        folder: Path,
        parameters: Mapping[str, Any],
        precision: str | None = None,
        graph: str = "encoder",
    ) -> None:
        self.facts = EngineFacts.load(folder)
        fastest = "f32" if self.facts.family in FLOAT32 else hardware_precision(this_cpu(), many_rows=True)
        settings = compile_settings(precision or fastest)
        settings["DYNAMIC_QUANTIZATION_GROUP_SIZE"] = GROUP if parameters.get("compress") == "int8" else 0
        core = ov.Core()
        model = core.read_model(folder / f"{graph}.xml")
        self.request = core.compile_model(model, "CPU", settings).create_infer_request()

    def encode(self, **inputs: NDArray[Any]) -> NDArray[np.float32]:
        self.request.infer(inputs)
        return np.array(self.request.get_tensor("embedding").data, np.float32)
