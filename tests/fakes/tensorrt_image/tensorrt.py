"""A stand-in for the `tensorrt` package of NVIDIA's image, as far as a plan of one profile is run: addresses,
shapes and dtypes count, as there.

The plan is what tests/fakes/nvidia_tools.py writes. CONTRACT_GRAPHS names the OpenVINO graph of the miniature
that does the arithmetic; {model} in it is the model's id, PLAN_GRAPH the graph's file.
"""

import ctypes
import json
import os
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

__version__ = "10.10.0.31"
float16 = "DataType.HALF"


class Logger:
    WARNING = 2

    def __init__(self, severity):
        self.severity = severity


class Runtime:
    def __init__(self, logger):
        self.logger = logger

    def deserialize_cuda_engine(self, plan):
        """None for what is no plan of this release."""
        try:
            return Engine(json.loads(plan))
        except ValueError:
            return None


@dataclass
class Engine:
    """ICudaEngine."""

    plan: dict
    num_io_tensors: int = 2

    def get_tensor_name(self, index):
        return ("input", "encoder_output")[index]

    def get_tensor_dtype(self, name):
        return float16

    def get_tensor_shape(self, name):
        return self.plan[name]

    def get_tensor_profile_shape(self, name, profile):
        assert (name, profile) == ("input", 0)
        rest, most = self.plan["input"][1:], self.plan["max_batch_size"]
        return [1, *rest], [max(1, most // 2), *rest], [most, *rest]

    def create_execution_context(self):
        return Context(self)


@dataclass
class Context:
    """IExecutionContext. Nothing is run before each tensor has a shape and an address."""

    engine: Engine
    batch: int = 0
    addresses: dict = field(default_factory=dict)
    graph: object = None

    def set_input_shape(self, name, shape):
        """False outside the profile."""
        least, _, most = self.engine.get_tensor_profile_shape(name, 0)
        fits = len(shape) == len(least) and all(
            low <= size <= high for low, size, high in zip(least, shape, most, strict=True)
        )
        self.batch = shape[0] if fits else 0
        return fits

    def get_tensor_shape(self, name):
        return [self.batch or -1, *self.engine.plan[name][1:]]

    def set_tensor_address(self, name, address):
        self.addresses[name] = address
        return True

    def execute_async_v3(self, stream):
        if not self.batch or self.addresses.keys() != {"input", "encoder_output"} or not stream:
            return False
        self._view("encoder_output")[:] = self._rows(self._view("input").astype(np.float32))
        self.addresses = {}
        return True

    def _view(self, name):
        shape = self.get_tensor_shape(name)
        memory = (ctypes.c_char * (2 * int(np.prod(shape)))).from_address(self.addresses[name])
        return np.frombuffer(memory, np.float16).reshape(shape)

    def _rows(self, pixels):
        """One picture at a time: what it is, no other picture may change."""
        if self.graph is None:
            import openvino

            folder = os.environ["CONTRACT_GRAPHS"].format(model=Path(__file__).parents[1].name)
            settings = {"INFERENCE_PRECISION_HINT": "f32"}
            model = openvino.Core().compile_model(str(Path(folder) / "picture.xml"), "CPU", settings)
            self.graph = model.create_infer_request()
        rows = []
        for one in pixels:
            self.graph.infer({"pixels": one[None]})
            rows.append(self.graph.get_tensor("embedding").data[0].copy())
        return np.stack(rows)
