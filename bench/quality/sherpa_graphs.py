"""Export Conch's networks for sherpa-onnx, so that it is evaluated on the same weights: `python -m
bench.quality.sherpa_graphs FOLDER` writes segmentation.onnx and voice.onnx.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

import onnx
import torch
from torch import Tensor, nn

from build.checkpoints.speakers import load

# What sherpa-onnx's own export scripts write (scripts/pyannote/segmentation, scripts/3dspeaker).
SEGMENTATION = {
    "model_type": "pyannote-segmentation-3-0",
    "num_speakers": 3,
    "powerset_max_classes": 2,
    "num_classes": 7,
    "sample_rate": 16000,
    "window_size": 160000,
    "receptive_field_size": 991,
    "receptive_field_shift": 270,
}
VOICE = {
    "framework": "3d-speaker",
    "language": "Chinese-English",
    "sample_rate": 16000,
    "output_dim": 192,
    "normalize_samples": 1,
    "feature_normalize_type": "global-mean",
}


class OneChannel(nn.Module):
    """Takes samples [rows, 1, n]."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, wav: Tensor) -> Tensor:
        return self.network(wav[:, 0])


class OfFeatures(nn.Module):
    """Takes features [rows, frames, 80], which sherpa-onnx computes itself."""

    def __init__(self, voice: nn.Module) -> None:
        super().__init__()
        self.voice = voice

    def forward(self, features: Tensor) -> Tensor:
        hidden = self.voice.xvector(self.voice.head(features.transpose(1, 2)))
        mean, count = hidden.mean(-1), hidden.shape[-1]
        deviation = ((hidden - mean[:, :, None]).square().sum(-1) / (count - 1)).sqrt()
        return self.voice.dense(torch.cat([mean, deviation], 1))


def save(network: nn.Module, example: Tensor, free: int, path: Path, facts: Mapping[str, object]) -> None:
    """Write one network with its metadata; `free` is the axis of variable length."""
    axes = {"x": {0: "rows", free: "n"}, "y": {0: "rows"}}
    names = {"input_names": ["x"], "output_names": ["y"], "dynamic_axes": axes}
    torch.onnx.export(network, (example,), str(path), dynamo=False, opset_version=17, **names)
    made = onnx.load(str(path))
    onnx.helper.set_model_props(made, {name: str(value) for name, value in facts.items()})
    onnx.save(made, str(path))


def main() -> None:
    """Run the command line."""
    folder, networks = Path(sys.argv[1]), load(Path("weights/speakers"))
    folder.mkdir(parents=True, exist_ok=True)
    segmentation, voice = OneChannel(networks.segmentation), OfFeatures(networks.voice)
    save(segmentation, torch.rand(1, 1, 160_000), 2, folder / "segmentation.onnx", SEGMENTATION)
    save(voice, torch.rand(1, 300, 80), 1, folder / "voice.onnx", VOICE)


if __name__ == "__main__":
    main()
