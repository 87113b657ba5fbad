"""Export encoders (embedding models) to OpenVINO: `python -m build.targets.openvino.export_encoder --family F
--weights FOLDER --output FOLDER` writes a graph for each encoder, engine.json, for pictures picture.json, and
the tokenizer's files. The graphs map ids and mask [texts, n], pixels [pictures, 3, size, size] or wav
[sounds, n] to float32 [rows, dimensions].
"""

from __future__ import annotations

from pathlib import Path

import openvino as ov
import torch
from torch import nn

from build.checkpoints import encoders
from serving.architectures.clip import Clip
from serving.architectures.speakers import Speakers

from .stateful import compress_int8, picture_graph, traced


def text_graph(network: nn.Module) -> ov.Model:
    """Trace it for any number of texts of any length."""
    ids = torch.ones(2, 5, dtype=torch.long)
    return traced(network, (ids, ids), [("ids", [-1, -1]), ("mask", [-1, -1])], ["embedding"])


def sound_graph(network: nn.Module, samples: int) -> ov.Model:
    """Trace it for any number of sounds of any length; `samples`: an example's."""
    return traced(network, (torch.rand(2, samples),), [("wav", [-1, -1])], ["embedding"])


def graphs(network: encoders.Network) -> dict[str, ov.Model]:
    """Trace its encoders, by file name."""
    if isinstance(network, Clip):
        return {
            "text": text_graph(network.text),
            "image": picture_graph(network.picture, network.shape.size),
        }
    if isinstance(network, Speakers):
        return {
            "segmentation": sound_graph(network.segmentation, 160_000),
            "voice": sound_graph(network.voice, 32_000),
        }
    return {"encoder": text_graph(network)}


@torch.no_grad()
def export(family: str, weights: Path, output: Path, compress: str, longest: int) -> None:
    """Write the engine folder."""
    for name, graph in graphs(encoders.load(family, weights, output, longest)).items():
        if compress == "int8":
            compress_int8(graph)
        ov.save_model(graph, output / f"{name}.xml", compress_to_fp16=False)


def main() -> None:
    """Run the command line."""
    parser = encoders.parser(__doc__)
    parser.add_argument("--compress", choices=["none", "int8"], default="none")
    given = parser.parse_args()
    export(given.family, given.weights, given.output, given.compress, given.max_input_len)


if __name__ == "__main__":
    main()
