"""A stand-in for trtexec of TensorRT 10.11: it takes the options of tests/contract/trtexec.json as
samples/common/sampleOptions.cpp reads them, checks a graph as the ONNX parser and the builder would, and
writes a file that says what it was made for, with the graph after it, for tests/fakes/tensorrt_backend.

Written from that file, sampleEngines.cpp (`setupNetworkAndConfig`) and onnx-tensorrt's docs/operators.md; it
shares no code with build/targets/tensorrt.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import onnx

CONTRACT = Path(__file__).parent.parent / "contract"
KINDS: dict[str, str] = json.loads((CONTRACT / "trtexec.json").read_text("utf-8"))["options"]
OPERATORS: dict[str, list[str]] = json.loads((CONTRACT / "onnx_tensorrt.json").read_text("utf-8"))[
    "operators"
]
TYPES = {
    onnx.TensorProto.FLOAT: "FP32",
    onnx.TensorProto.FLOAT16: "FP16",
    onnx.TensorProto.BFLOAT16: "BF16",
    onnx.TensorProto.INT32: "INT32",
    onnx.TensorProto.INT64: "INT64",
    onnx.TensorProto.BOOL: "BOOL",
    onnx.TensorProto.UINT8: "UINT8",
    onnx.TensorProto.INT8: "INT8",
}
SAME = (
    *("Add", "Sub", "Mul", "Div", "Pow", "Min", "Max", "Greater", "Equal", "MatMul", "Concat", "Conv"),
    "LayerNormalization",
)
AXES = {"ReduceSum": 1, "Slice": 3, "Unsqueeze": 1}  # inputs that must be known when it is built
SHAPES = ("--minShapes", "--optShapes", "--maxShapes")


class Invalid(Exception):
    """What trtexec would say before it ends with status 1."""


def parse(argv: list[str]) -> dict[str, str]:
    """`argsToArgumentsMap`: an argument is `name` or `name=value`; a value apart is an option of its own, and
    a name that stands twice is left over.
    """
    given: dict[str, str] = {}
    for argument in argv:
        name, _, value = argument.partition("=")
        if name not in KINDS or name in given:
            raise Invalid(f"Unknown option: {name} {value}")
        given[name] = value
    return given


def shapes(spec: str) -> dict[str, list[int]]:
    """`splitNameAndValue` at commas and the last colon, numbers at x."""
    found = {}
    for part in spec.split(","):
        name, _, sizes = part.rpartition(":")
        try:
            found[name] = [int(size) for size in sizes.split("x")]
        except ValueError:
            raise Invalid(
                "stoi conversion failure: failed to parse minShapes/optShapes/maxShapes. Please double check "
                "your input string."
            ) from None
    return found


def types_of(model: onnx.ModelProto) -> dict[str, int]:
    """The element type of every tensor."""
    inferred = onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True).graph
    every = [*inferred.input, *inferred.output, *inferred.value_info]
    found = {value.name: value.type.tensor_type.elem_type for value in every}
    return found | {weight.name: weight.data_type for weight in inferred.initializer}


def check_network(model: onnx.ModelProto, *, typed: bool) -> None:
    """Operators and types as the parser takes them; with `typed`, operands of one type."""
    types = types_of(model)
    weights = {weight.name for weight in model.graph.initializer}
    constant = weights | {
        name for node in model.graph.node if node.op_type == "Constant" for name in node.output
    }
    for node in model.graph.node:
        if node.domain not in ("", "ai.onnx") or node.op_type not in OPERATORS:
            raise Invalid(f"ONNX: no importer for {node.op_type}")
        read = [types[name] for name in node.input if name]
        first = ("Reshape", "Expand", "Gather", "Slice", "QuantizeLinear", "DequantizeLinear", *AXES)
        data = read[:1] if node.op_type in first else read
        made = [types[name] for name in node.output if name]
        for kind in [*data, *(made if node.op_type in ("Cast", "Constant") else [])]:
            if TYPES.get(kind) not in OPERATORS[node.op_type]:
                raise Invalid(f"ONNX: {node.op_type} does not take {TYPES.get(kind, kind)} ({node.name})")
        at = AXES.get(node.op_type)
        if at is not None and len(node.input) > at and node.input[at] not in constant:
            raise Invalid(f"ONNX: the axes of {node.op_type} must be an initializer ({node.name})")
        operands = read[1:] if node.op_type == "Where" else read if node.op_type in SAME else []
        operands = read[:2] if node.op_type == "QuantizeLinear" else operands
        if node.op_type in ("QuantizeLinear", "DequantizeLinear") and node.input[2] not in weights:
            raise Invalid(f"{node.op_type}: the zero point must be an initializer ({node.name})")
        if typed and len(set(operands)) > 1:
            raise Invalid(f"strongly typed: {node.op_type} has operands of {operands} ({node.name})")


def profile(model: onnx.ModelProto, given: dict[str, str]) -> dict[str, Any]:
    """Inputs with their one optimisation profile."""
    asked = [shapes(given[name]) if given.get(name) else {} for name in SHAPES]
    inputs = {value.name: value.type.tensor_type for value in model.graph.input}
    for name in {name for one in asked for name in one} - inputs.keys():
        raise Invalid(f'Cannot find input tensor with name "{name}" in the network inputs!')
    found = {}
    for name, kind in inputs.items():
        dims = [dim.dim_value or -1 for dim in kind.shape.dim]
        if -1 not in dims:
            raise Invalid("Static model does not take explicit shapes")
        ones = [1 if dim == -1 else dim for dim in dims]
        rows = [one.get(name, ones) for one in asked]
        if any(len(row) != len(dims) for row in rows):
            raise Invalid(f"Error in set dimensions to profile of {name}")
        for dim, least, favoured, most in zip(dims, *rows, strict=True):
            fixed = dim == -1 or least == favoured == most == dim
            if not (fixed and 0 < least <= favoured <= most):
                raise Invalid("Required optimization profile is invalid")
        found[name] = {"type": TYPES[kind.elem_type], "dims": dims, "profile": rows}
    return found


def gpu(root: Path) -> dict[str, str]:
    """The first that CUDA shows."""
    rows = json.loads((root / "etc/gpus.json").read_text())
    seen = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
    if not (seen.isdigit() and int(seen) < len(rows)):
        raise Invalid("Cannot find any available GPUs!")
    return {"name": rows[int(seen)][0], "compute_capability": rows[int(seen)][1]}


def build(given: dict[str, str], root: Path) -> None:
    """From the ONNX file to the plan."""
    if "--onnx" not in given:
        raise Invalid("Model missing or format not recognized")
    if "--best" in given and "--stronglyTyped" in given:
        raise Invalid("--best and --stronglyTyped cannot be both set.")
    card = gpu(root)
    path = Path(given["--onnx"])
    if not path.is_file():
        raise Invalid(f"Could not open file {path}")
    model = onnx.load(path)
    onnx.checker.check_model(model)  # types and shapes: check_network
    check_network(model, typed="--stronglyTyped" in given)
    outputs = {
        value.name: {
            "type": TYPES[value.type.tensor_type.elem_type],
            "dims": [dim.dim_value or -1 for dim in value.type.tensor_type.shape.dim],
        }
        for value in model.graph.output
    }
    facts = {
        "tensorrt": (root / "etc/tensorrt").read_text().strip(),
        "gpu": card,
        "inputs": profile(model, given),
        "outputs": outputs,
        "typed": "--stronglyTyped" in given,
    }
    if "--timingCacheFile" in given:
        Path(given["--timingCacheFile"]).write_bytes(b"timings")
    if "--saveEngine" in given:
        Path(given["--saveEngine"]).write_bytes(json.dumps(facts).encode() + b"\n" + path.read_bytes())


def usage() -> Iterator[str]:
    """`AllOptions::help`, one line an option."""
    yield "=== Build Options ==="
    for name, kind in KINDS.items():
        yield f"  {name}={'spec' if kind == 'value' else ''}".rstrip("=").ljust(37) + "as upstream says"


def main(root: Path) -> NoReturn:
    """Status 0, or 1 as `reportFail`."""
    major, minor, patch, number = (root / "etc/tensorrt").read_text().strip().split(".")
    banner = f"TensorRT.trtexec [TensorRT v{int(major) * 10000 + int(minor) * 100 + int(patch)}] [b{number}]"
    print(f"&&&& RUNNING {banner} # {' '.join(sys.argv)}")
    if not sys.argv[1:] or {"--help", "-h"} & set(sys.argv[1:]):
        print("\n".join(usage()))
        sys.exit(0)
    try:
        build(parse(sys.argv[1:]), root)
    except (Invalid, onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        print(f"[E] {error}\n&&&& FAILED {banner}")
        sys.exit(1)
    print(f"CUDA_VISIBLE_DEVICES={os.environ.get('CUDA_VISIBLE_DEVICES')}\n&&&& PASSED {banner}")
    sys.exit(0)
