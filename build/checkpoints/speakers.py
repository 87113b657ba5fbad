"""pyannote's segmentation 3.0 and 3D-Speaker's CAM++ as published: two pickled files, from which only tensors
are read.
"""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from conch.bundle import EngineFacts
from serving.architectures.speakers import Shape, Speakers, sinc_filters

from . import renamed

SEGMENTATION, VOICE = "pytorch_model.bin", "campplus_cn_en_common.pt"
RULES = [
    (r"^sincnet\.wav_norm1d", "level"),
    (r"^sincnet\.conv1d\.", "convolutions."),
    (r"^sincnet\.norm1d\.", "norms."),
]
SINC = "sincnet.conv1d.0.filterbank."


class _Ignored:
    """Stands for what lightning pickles besides tensors: training settings."""

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def __setstate__(self, state: Any) -> None: ...

    def __setitem__(self, key: Any, value: Any) -> None: ...


class _TensorsOnly(pickle.Unpickler):
    """An unpickler that makes tensors and plain data, and calls nothing that a file names."""

    SAFE = (
        ("torch._utils", "_rebuild_tensor_v2"),
        ("torch", "FloatStorage"),
        ("torch", "LongStorage"),
        ("collections", "OrderedDict"),
    )

    def find_class(self, module: str, name: str) -> Any:
        return super().find_class(module, name) if (module, name) in self.SAFE else _Ignored


class _Pickle:
    """The pickle module that torch.load is given."""

    Unpickler = _TensorsOnly
    load = staticmethod(lambda file, **_: _TensorsOnly(file).load())
    __name__ = "tensors only"


def load(weights: Path) -> Speakers:
    """Load both networks in float32.

    Raises:
        RuntimeError: names or shapes are others than those of the two models.
    """
    made = Speakers(Shape())
    theirs = torch.load(weights / SEGMENTATION, map_location="cpu", pickle_module=_Pickle, weights_only=False)
    made.segmentation.load_state_dict(_segmentation(theirs["state_dict"]))
    voice = torch.load(weights / VOICE, map_location="cpu", weights_only=True)
    made.voice.load_state_dict(
        {name.replace("xvector.dense", "dense"): tensor for name, tensor in voice.items()}
    )
    return made.eval()


def _segmentation(state: dict[str, Tensor]) -> dict[str, Tensor]:
    kernels = sinc_filters(state[SINC + "low_hz_"], state[SINC + "band_hz_"], Shape().filter_size)
    rest = {name: tensor for name, tensor in state.items() if not name.startswith(SINC)}
    return {"convolutions.0.weight": kernels, **renamed(rest, RULES)}


def facts() -> EngineFacts:
    """Make engine.json's facts; a position is a sample of audio, ten seconds at most."""
    return EngineFacts(
        family="speakers", positions=160_000, vocabulary=0, end_id=0, dimensions=Shape().dimensions
    )
