"""Export a checkpoint to OpenVINO: `python -m build.targets.openvino.export --family F --weights FOLDER
--output FOLDER` writes the graphs, engine.json, for pictures picture.json, and the tokenizer's files.

The encoder maps features [1, mels, frames] or ids [1, n] to the cross-attention keys and values of every
decoder layer, so they are computed once per request. The decoder is described in stateful.py. The graphs of
embedding models map ids and mask [texts, n], pixels [pictures, 3, size, size] or wav [sounds, n] to float32
[rows, dimensions].
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import openvino as ov
import torch
from torch import nn

from build import checkpoints
from build.checkpoints import encoders
from build.checkpoints.arguments import Arguments, parse, write_files
from serving.architectures.clip import Clip
from serving.architectures.speakers import Speakers
from serving.architectures.transformer import Encoder, Transformer

from .stateful import compress, decoder_graph, memories, picture_graph, traced

# Whisper was trained on sounds with silence up to 30 s; less of it will do (docs/benchmarks/real-speech.md).
SHORT_FRAMES = (1000, 1500, 2000, 2500)


def encoder_graph(encoder: Encoder) -> ov.Model:
    """Trace the encoder; lengths stay dynamic (measured for Whisper: 3 to 6 % slower than a fixed one)."""
    mels = encoder.shape.mels
    example = torch.zeros(1, mels, 20) if mels else torch.zeros(1, 7, dtype=torch.long)
    source = ("features", [1, mels, -1]) if mels else ("ids", [1, -1])
    return traced(encoder, example, [source], memories(encoder.shape.decoder_layers))


def graphs(model: Transformer) -> dict[str, ov.Model]:
    """Trace all graphs that the shape needs, by file name."""
    made = {"encoder": encoder_graph(model.encoder)} if model.encoder is not None else {}
    made["decoder"] = decoder_graph(model.decoder)
    return made


def text_graph(network: nn.Module) -> ov.Model:
    """Trace an embedding model for any number of texts of any length."""
    ids = torch.ones(2, 5, dtype=torch.long)
    return traced(network, (ids, ids), [("ids", [-1, -1]), ("mask", [-1, -1])], ["embedding"])


def sound_graph(network: nn.Module, samples: int) -> ov.Model:
    """Trace an embedding model for any number of sounds of any length; `samples`: an example's."""
    return traced(network, (torch.rand(2, samples),), [("wav", [-1, -1])], ["embedding"])


def embedding_graphs(network: encoders.Network) -> dict[str, ov.Model]:
    """Trace the encoders of an embedding model, by file name."""
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
def export(arguments: Arguments) -> None:
    """Write the engine folder."""
    if arguments.family in encoders.FAMILIES:
        weights, output = Path(arguments.weights), arguments.output
        network = encoders.load(arguments.family, weights, output, arguments.max_input_len)
        for name, graph in embedding_graphs(network).items():
            compress(graph, arguments.compress, vocabulary=0)  # none of them makes logits
            ov.save_model(graph, output / f"{name}.xml", compress_to_fp16=False)
        return
    theirs, ours = checkpoints.load(arguments.family, arguments.weights, arguments.seed)
    half = not arguments.random and checkpoints.stored_in_half(Path(arguments.weights))
    made = graphs(ours)
    if ours.shape.prompt_table:
        pictures = checkpoints.picture_encoder(arguments.family, theirs)
        made["picture"] = picture_graph(pictures, pictures.shape.size)
    for name, graph in made.items():
        if name != "picture":
            compress(graph, arguments.compress, ours.shape.vocabulary)
        ov.save_model(graph, arguments.output / f"{name}.xml", compress_to_fp16=half)
    if ours.shape.relative:
        # Float32 [heads, distances]: what the decoder adds to the score of an id that many positions earlier.
        bias = ours.decoder.relative.weight.T.contiguous().numpy()[:, : ours.shape.relative + 1]
        np.save(arguments.output / "relative_bias.npy", bias)
    short = SHORT_FRAMES if ours.shape.mels else ()
    write_files(arguments, theirs, ours.shape, short_frames=short)


if __name__ == "__main__":
    export(parse(__doc__))
