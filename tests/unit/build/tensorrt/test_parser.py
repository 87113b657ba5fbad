"""Graphs read by NVIDIA's own ONNX parser and compiled by its compiler, on a CPU: TensorRT-RTX, which has the
interfaces of TensorRT 10. Its engines are for other GPUs than those of servers; they are not run.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import tensorrt_rtx_bindings as rtx
import torch
from onnx import TensorProto, helper

from build.checkpoints import clip
from build.targets.tensorrt import graphs
from build.targets.tensorrt.export import Sizes, plan
from build.targets.tensorrt.plans import Plan
from build.targets.tensorrt.quantize import quantize

from ...serving import test_clip, test_embedding
from .test_graphs import PRECISIONS, graph, picture_graph
from .test_quantize import FACTS, drawn

pytestmark = pytest.mark.slow  # imports torch and transformers, compiles
SIZES = Sizes(64, 16, 77, 64)


class Log(rtx.ILogger):  # type: ignore[misc]
    """Keeps warnings and errors."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def log(self, severity: Any, message: str) -> None:
        if severity <= rtx.ILogger.WARNING:
            self.lines.append(message)


class Network:
    """A strongly typed network, parsed from a file."""

    def __init__(self, path: Path) -> None:
        self.log = Log()
        self.builder = rtx.Builder(self.log)
        flags = 1 << int(rtx.NetworkDefinitionCreationFlag.STRONGLY_TYPED)
        self.network = self.builder.create_network(flags)
        self.parser = rtx.OnnxParser(self.network, self.log)
        self.parsed = self.parser.parse_from_file(str(path))

    def errors(self) -> str:
        found = [str(self.parser.get_error(i)) for i in range(self.parser.num_errors)]
        return "\n".join([*found, *self.log.lines])

    def compiled(self, wanted: Plan) -> int:
        """Bytes of an engine with the profile of a plan."""
        settings, profile = self.builder.create_builder_config(), self.builder.create_optimization_profile()
        for tensor in wanted.inputs:
            profile.set_shape(tensor.name, tensor.least, tensor.favoured, tensor.most)
        settings.add_optimization_profile(profile)
        settings.num_compute_capabilities = 1
        settings.set_compute_capability(rtx.ComputeCapability.SM80, 0)
        made = self.builder.build_serialized_network(self.network, settings)
        assert made is not None, self.log.lines
        return int(made.nbytes)


def exported(folder: Path, photographs: Path) -> Iterator[tuple[str, graphs.Graph]]:
    """Every encoder of this target, in both precisions, and pictures' in INT8."""
    bert = test_embedding.checkpoint(folder / "bert", "mean_tokens")
    for dtype in PRECISIONS:
        name = str(dtype)[6:]
        yield f"text-{name}", graph("clip", test_clip.MINI, dtype)
        yield f"encoder-{name}", graph("bert", bert, dtype)
        for kind in ("image", "image int8"):
            whole = clip.load(test_clip.MINI)
            if kind == "image int8":
                quantize(whole.picture, photographs, FACTS)
            yield f"{kind}-{name}", picture_graph(whole, dtype)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Plan]]:
    """ONNX files with their plans."""
    folder, found = tmp_path_factory.mktemp("graphs"), {}
    (folder / "bert").mkdir()
    with torch.no_grad():
        for name, made in exported(folder, drawn(folder / "drawn", 32)):
            path = folder / f"{name}.onnx"
            graphs.save(made, path)
            found[name] = (path, plan(made, SIZES))
    return found


@pytest.mark.parametrize(
    "name",
    [
        f"{kind}-{dtype}"
        for kind in ("text", "image", "image int8", "encoder")
        for dtype in ("float16", "float32")
    ],
)
def test_the_parser_and_the_compiler_take_every_graph(files: dict[str, tuple[Path, Plan]], name: str) -> None:
    """Strongly typed, without a warning; ports as Triton's models have them."""
    path, wanted = files[name]
    made = Network(path)
    assert made.parsed, made.errors()
    assert not made.log.lines
    inputs = [made.network.get_input(i) for i in range(made.network.num_inputs)]
    assert [one.name for one in inputs] == [tensor.name for tensor in wanted.inputs]
    expected = {"TYPE_INT32": rtx.int32, "TYPE_FP32": rtx.float32, "TYPE_FP16": rtx.float16}
    assert [one.dtype for one in inputs] == [expected[tensor.datatype] for tensor in wanted.inputs]
    output = made.network.get_output(0)
    assert (output.name, output.dtype) == (wanted.output, rtx.float32)
    assert list(output.shape) == [-1, wanted.dimensions]
    assert made.compiled(wanted) > 1_000


def graph_of(node: Any, constants: dict[str, np.ndarray]) -> onnx.ModelProto:
    """x [n, 4] -> y, in float16."""
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT16, ["n", 4]) for name in "xy")
    known = [onnx.numpy_helper.from_array(array, name) for name, array in constants.items()]
    graph = helper.make_graph([node], "g", [x], [y], known)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])


@pytest.mark.parametrize(
    ("node", "constants", "sentence"),
    [
        (("Unique", ["x"]), {}, "UNSUPPORTED_NODE"),
        (("MatMul", ["x", "weight"]), {"weight": np.ones((4, 4), np.float32)}, "must have same input types"),
    ],
)
def test_the_parser_refuses(
    tmp_path: Path, node: tuple[str, Sequence[str]], constants: dict[str, np.ndarray], sentence: str
) -> None:
    """An operator that it does not have, and operands of two types."""
    path = tmp_path / "g.onnx"
    onnx.save(graph_of(helper.make_node(*node, ["y"]), constants), path)
    made = Network(path)
    assert not made.parsed
    assert sentence in made.errors()
