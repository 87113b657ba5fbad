"""Run an encoder (embedding model) in torch."""

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
from serving.architectures import bert, clip, pictures, speakers

from .device import Device
from .runtime import WEIGHTS

TOKENS_AT_ONCE = {"cpu": 2048, "cuda": 32_768}
PICTURE_WEIGHTS = "picture.safetensors"


class TorchEncoder:
    """See serving.engine.encoding.EncoderRuntime. `graph`: which encoder of the engine.

    Raises:
        NoGpu: see `Device.find`.
    """

    def __init__(self, folder: Path, parameters: Mapping[str, Any], graph: str = "encoder") -> None:
        self.facts = EngineFacts.load(folder)
        self.device = Device.find(str(parameters["precision"]))
        dtype = self.device.dtype
        if graph == "picture":
            model = _pictures(folder).lower(dtype)
        else:
            model = _models(folder, self.facts.family)[graph].to(dtype)
        self.model = model.to(self.device.kind).eval()

    @property
    def tokens_at_once(self) -> int:
        return TOKENS_AT_ONCE[self.device.kind]

    @torch.inference_mode()
    def encode(self, **inputs: NDArray[Any]) -> NDArray[np.float32]:
        tensors = {name: self.device.upload(array) for name, array in inputs.items()}
        if "pixels" in tensors:
            tensors["pixels"] = tensors["pixels"].to(self.device.dtype)
        found: NDArray[np.float32] = self.model(**tensors).float().cpu().numpy()
        return found


def _pictures(folder: Path) -> pictures.LlavaPictures | pictures.BlipPictures:
    """Load the picture encoder that makes rows of a prompt table for a language model."""
    with torch.device("meta"):
        made = pictures.encoder(pictures.Shape.load(folder))
    made.load_state_dict(load_file(folder / PICTURE_WEIGHTS), assign=True)
    return made


def _models(folder: Path, family: str) -> dict[str, nn.Module]:
    """Load the encoders of an engine by name."""
    weights = load_file(folder / WEIGHTS)
    if family == "clip":
        whole = clip.Clip(clip.Shape.load(folder))
        whole.load_state_dict(weights)
        return {"text": whole.text, "image": whole.picture}
    if family == "speakers":
        both = speakers.Speakers(speakers.Shape.load(folder))
        both.load_state_dict(weights)
        return {"segmentation": both.segmentation, "voice": both.voice}
    alone = bert.TextEmbedder(bert.Shape.load(folder))
    alone.load_state_dict(weights)
    return {"encoder": alone}
