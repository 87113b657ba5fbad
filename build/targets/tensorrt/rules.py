"""Check a model's configuration against the rules of TensorRT's Triton backend before a bundle is finished:
r25.07 of triton-inference-server/tensorrt_backend, src/instance_state.cc. The backend would report some
violations when it starts, and some only at a request.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

from conch.names import LONGEST

from ...recipes import TritonModel
from ...tensors import MODELS, parse_config
from .plans import Plan

BACKEND, PLATFORM, FILE = "tensorrt", "tensorrt_plan", "model.plan"
VECTOR_TYPE = "TYPE_FP32"


def configured(model: TritonModel, plan: Plan, batch: int) -> model_config_pb2.ModelConfig:
    """Return the configuration for TensorRT's backend of a model of model_repos: the same tensors, on the
    GPUs that the server sees. Sizes that a plan fixes are listed, so that Triton itself refuses others.
    """
    config = parse_config(MODELS / model.folder / "config.pbtxt")
    config.name, config.max_batch_size = model.name, batch
    config.backend, config.platform, config.default_model_filename = BACKEND, PLATFORM, FILE
    taken = {tensor.name: tensor for tensor in plan.inputs}
    for tensor in config.input:
        tensor.allow_ragged_batch = False  # it would join rows of different length into one long one
        bounds = zip(taken[tensor.name].least[1:], taken[tensor.name].most[1:], strict=True)
        tensor.data_type = model_config_pb2.DataType.Value(taken[tensor.name].datatype)
        tensor.dims[:] = [least if least == most else -1 for least, most in bounds]
    if longest := _longest(plan):
        # The backend calls a longer row an error of its own; the guard reads this and says what is wrong.
        config.parameters[LONGEST].string_value = str(longest)
    del config.instance_group[:]
    config.instance_group.add(count=1, kind=model_config_pb2.ModelInstanceGroup.KIND_AUTO)
    return config


def write(config: model_config_pb2.ModelConfig, plan: Path, folder: Path) -> None:
    """Write a Triton model whose only version is a plan."""
    (folder / "1").mkdir(parents=True)
    (folder / "1" / FILE).hardlink_to(plan)
    (folder / "config.pbtxt").write_text(text_format.MessageToString(config), "utf-8")


def findings(config: model_config_pb2.ModelConfig, plan: Plan, version: Path) -> list[str]:
    """Return what is wrong with a model, one sentence each; empty if the backend would serve it. `version` is
    the folder of its version.
    """
    return [f"{config.name}: {wrong}" for wrong in _findings(config, plan, version)]


def _findings(config: model_config_pb2.ModelConfig, plan: Plan, version: Path) -> Iterator[str]:
    for field, wanted in (("backend", BACKEND), ("platform", PLATFORM), ("default_model_filename", FILE)):
        if (found := getattr(config, field)) != wanted:
            yield f"its {field} is {found!r}; it must be {wanted!r}"
    file = version / FILE
    if not (file.is_file() and file.stat().st_size):
        yield f"{file} is missing or empty; build it again"
    kinds = {group.kind for group in config.instance_group}
    if kinds - {model_config_pb2.ModelInstanceGroup.KIND_AUTO, model_config_pb2.ModelInstanceGroup.KIND_GPU}:
        yield "an instance_group is not on a GPU, and TensorRT runs nowhere else"
    if any(group.profile for group in config.instance_group):
        yield "an instance_group names an optimisation profile; the plan has one"
    rows = min(tensor.most[0] for tensor in plan.inputs)
    if not 1 <= config.max_batch_size <= rows:
        yield f"its max_batch_size is {config.max_batch_size}; the plan takes from 1 to {rows}"
    longest = str(_longest(plan) or "")
    if (found := config.parameters[LONGEST].string_value if LONGEST in config.parameters else "") != longest:
        yield f"its parameter {LONGEST} is {found!r}; the plan wants {longest!r}"
    yield from _inputs(config.input, plan)
    yield from _outputs(config.output, plan)
    if not config.HasField("dynamic_batching"):
        yield "it has no dynamic_batching, so that requests would be computed one after the other"


def _longest(plan: Plan) -> int:
    """Return the maximum of the variable sizes other than the number of rows; 0 if there are none."""
    pairs = (pair for tensor in plan.inputs for pair in zip(tensor.least[1:], tensor.most[1:], strict=True))
    return max((most for least, most in pairs if least != most), default=0)


def _inputs(tensors: Sequence[model_config_pb2.ModelInput], plan: Plan) -> Iterator[str]:
    there = {tensor.name: tensor for tensor in plan.inputs}
    if missing := there.keys() - {tensor.name for tensor in tensors}:
        yield f"it has no input {min(missing)}, which the plan reads"
    for tensor in tensors:
        if tensor.name not in there:
            yield f"the plan has no input {tensor.name}"
            continue
        known = there[tensor.name]
        kind = model_config_pb2.DataType.Name(tensor.data_type)
        if kind != known.datatype:
            yield f"input {tensor.name} is {kind}; the plan reads {known.datatype}"
        if tensor.allow_ragged_batch:
            yield f"input {tensor.name} has allow_ragged_batch; the plan reads one shape at a time"
        if tensor.optional:
            yield f"input {tensor.name} is optional; the plan reads it always"
        shape = list(tensor.reshape.shape) if tensor.HasField("reshape") else list(tensor.dims)
        if not _fits(shape, known.least[1:], known.most[1:]):
            yield (
                f"input {tensor.name} has dims {shape}; the plan takes from {list(known.least[1:])} to "
                f"{list(known.most[1:])}"
            )


def _outputs(tensors: Sequence[model_config_pb2.ModelOutput], plan: Plan) -> Iterator[str]:
    if plan.output not in {tensor.name for tensor in tensors}:
        yield f"it has no output {plan.output}, which the plan makes"
    for tensor in tensors:
        if tensor.name != plan.output:
            yield f"the plan has no output {tensor.name}"
            continue
        kind, dims = model_config_pb2.DataType.Name(tensor.data_type), (plan.dimensions,)
        if kind != VECTOR_TYPE:
            yield f"output {tensor.name} is {kind}; the plan makes {VECTOR_TYPE}"
        if not _fits(list(tensor.dims), dims, dims):
            yield f"output {tensor.name} has dims {list(tensor.dims)}; the plan makes {list(dims)}"


def _fits(dims: Sequence[int], least: Sequence[int], most: Sequence[int]) -> bool:
    """Tell whether dims match a plan: -1 stands for whatever the plan takes, a number must be within its
    range.
    """
    return len(dims) == len(most) and all(
        dim == -1 or low <= dim <= high for dim, low, high in zip(dims, least, most, strict=True)
    )
