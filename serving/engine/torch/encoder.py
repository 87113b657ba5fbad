"""An encoder alone, in torch."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file
from torch import nn

from conch.bundle import EngineFacts
from serving.architectures import bert, clip

from .device import Device
from .runtime import WEIGHTS


class TorchEncoder:
    """See serving.engine.encoding.Encoder. `graph`: which encoder of the engine.

    Raises:
        NoGpu: see `Device.find`.
    """

    def __init__(self, folder: Path, parameters: Mapping[str, Any], graph: str = "encoder") -> None:
        self.facts = EngineFacts.load(folder)
        self.device = Device.find(str(parameters["precision"]))
        model = _models(folder, self.facts.family)[graph]
        self.model = model.to(self.device.kind, self.device.dtype).eval()

    @torch.inference_mode()
    def encode(self, **inputs: NDArray[Any]) -> NDArray[np.float32]:
        """See Encoder."""
        tensors = {name: self.device.upload(array) for name, array in inputs.items()}
        if "pixels" in tensors:
            tensors["pixels"] = tensors["pixels"].to(self.device.dtype)
        found: NDArray[np.float32] = self.model(**tensors).cpu().numpy()
        return found


def _models(folder: Path, family: str) -> dict[str, nn.Module]:
    """The encoders of an engine by their names."""
    weights = load_file(folder / WEIGHTS)
    if family == "clip":
        whole = clip.Clip(clip.Shape.load(folder))
        whole.load_state_dict(weights)
        return {"text": whole.text, "image": whole.picture}
    alone = bert.Embedder(bert.Shape.load(folder))
    alone.load_state_dict(weights)
    return {"encoder": alone}
