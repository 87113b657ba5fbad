"""Export encoders (embedding models) to TensorRT plans: `python -m build.targets.tensorrt.export --family F
--weights FOLDER --output FOLDER --trtexec PATH …` writes a plan for each graph, plans.json, engine.json, for
pictures picture.json, and the tokenizer's files. The intermediate ONNX graphs are not kept.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from build.checkpoints import encoders
from build.checkpoints.arguments import options
from conch.bundle import EngineFacts, PictureFacts
from serving.architectures.bert import TextEmbedder
from serving.architectures.clip import Clip

from . import graphs
from .graphs import VECTOR, Graph
from .plans import Plan, Plans, PlanTensor, command, run
from .quantize import quantize

DATATYPES = {torch.int32: "TYPE_INT32", torch.float32: "TYPE_FP32", torch.float16: "TYPE_FP16"}


@dataclass(frozen=True)
class Sizes:
    """The maximum of rows and tokens in a batch, and the sizes that kernels are tuned for."""

    rows: int
    favoured_rows: int
    tokens: int
    favoured_tokens: int


def traced(network: encoders.Network, dtype: torch.dtype) -> list[Graph]:
    """Trace the graphs of a network's encoders."""
    graphs.lowered(network, dtype)
    if isinstance(network, Clip):
        clip = network.shape
        return [
            graphs.texts("text", network.text, clip.vocabulary, clip.dimensions),
            graphs.pictures("image", network.picture, clip.size, clip.dimensions, dtype),
        ]
    assert isinstance(network, TextEmbedder)  # family speakers has no recipe for this target
    return [graphs.texts("encoder", network, network.shape.vocabulary, network.shape.width)]


def plan(graph: Graph, sizes: Sizes) -> Plan:
    """Describe the plan of a graph, which takes one row and one token or more."""

    def shape(given: Sequence[int], rows: int, tokens: int) -> tuple[int, ...]:
        return (rows, *(tokens if size == -1 else size for size in given[1:]))

    favoured = min(sizes.favoured_rows, sizes.rows), min(sizes.favoured_tokens, sizes.tokens)
    inputs = tuple(
        PlanTensor(
            name,
            DATATYPES[example.dtype],
            shape(free, 1, 1),
            shape(free, *favoured),
            shape(free, sizes.rows, sizes.tokens),
        )
        for name, (example, free) in graph.inputs.items()
    )
    return Plan(graph.name, inputs, VECTOR, graph.dimensions)


@torch.no_grad()
def export(given: argparse.Namespace) -> None:
    """Write the engine folder.

    Raises:
        Unsupported, TooLarge: a checkpoint that this does not read, or half precision does not hold.
        SystemExit: trtexec failed.
    """
    output = given.output
    network = encoders.load(given.family, Path(given.weights), output, given.max_input_len)
    if isinstance(network, Clip):
        facts = replace(PictureFacts.load(output), pixels=given.precision)
        facts.save(output)
        if given.compress == "int8":
            quantize(network.picture, given.calibration, facts)
    made = traced(network, getattr(torch, given.precision))
    tokens = EngineFacts.load(output).positions
    sizes = Sizes(given.max_batch_size, given.opt_batch_size, tokens, given.opt_input_len)
    plans = Plans(tuple(plan(graph, sizes) for graph in made))
    with tempfile.TemporaryDirectory(dir=output.parent) as folder:
        for graph, wanted in zip(made, plans.plans, strict=True):
            path = Path(folder) / f"{graph.name}.onnx"
            graphs.save(graph, path)
            run(command(given.trtexec, path, wanted, output / wanted.file, given.timing, given.precision))
    plans.save(output)


def main() -> None:
    """Run the command line."""
    parser = options(__doc__)
    parser.add_argument("--calibration", type=Path, default=Path("none"), help="a folder of pictures")
    parser.add_argument("--max-batch-size", type=int, default=64, help="rows of a plan at most")
    parser.add_argument("--opt-batch-size", type=int, default=16, help="rows that kernels are chosen for")
    parser.add_argument("--opt-input-len", type=int, default=64, help="tokens that kernels are chosen for")
    parser.add_argument("--trtexec", required=True)
    parser.add_argument("--timing", type=Path, required=True, help="trtexec's timing cache")
    export(parser.parse_args())


if __name__ == "__main__":
    main()
