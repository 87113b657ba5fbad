"""Triton models of plans, for TensorRT's backend (r25.07 of triton-inference-server/tensorrt_backend)."""

from __future__ import annotations

from pathlib import Path

from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

from conch.names import LONGEST

from ...recipes import TritonModel
from ...tensors import MODELS, parse_config
from .plans import Plan

FILE = "model.plan"


def configured(model: TritonModel, plan: Plan, batch: int) -> model_config_pb2.ModelConfig:
    """Return the configuration for TensorRT's backend of a model of model_repos: the same tensors, on the
    GPUs that the server sees. Sizes that a plan fixes are listed, so that Triton itself refuses others.
    """
    config = parse_config(MODELS / model.folder / "config.pbtxt")
    config.name, config.max_batch_size = model.name, batch
    config.backend, config.platform, config.default_model_filename = "tensorrt", "tensorrt_plan", FILE
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


def _longest(plan: Plan) -> int:
    """Return the maximum of the variable sizes other than the number of rows; 0 if there are none."""
    pairs = (pair for tensor in plan.inputs for pair in zip(tensor.least[1:], tensor.most[1:], strict=True))
    return max((most for least, most in pairs if least != most), default=0)
