"""A stand-in for TensorRT's Triton backend, as strict as the C++: the same checks, in its order and words.

Written from src/instance_state.cc, model_state.cc and tensorrt_utils.cc of triton-inference-server/
tensorrt_backend r25.07; it shares no code with build/targets/tensorrt. A plan is what tests/fakes/trtexec.py
wrote; its graph is computed by OpenVINO in float32, types as they stand in it.
"""

import json
import os
import re
from pathlib import Path

import numpy as np
import openvino as ov
import triton_python_backend_utils as pb_utils

TYPES = {"FP32": np.float32, "FP16": np.float16, "INT32": np.int32, "INT64": np.int64, "BOOL": np.bool_}
ROOT = Path(os.environ.get("CONCH_IMAGE_ROOT", "/"))


def refuse(text):
    raise pb_utils.TritonModelException(text)


def compute_capability():
    """Of the first GPU that the process sees."""
    rows = json.loads((ROOT / "etc/gpus.json").read_text())
    return rows[int(os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0])][1]


def load_plan(path):
    """`LoadPlan`: what the engine says, and its graph."""
    header, _, graph = path.read_bytes().partition(b"\n")
    try:
        facts = json.loads(header)
    except ValueError:
        refuse("unable to create TensorRT engine: magic tag does not match")
    if facts["tensorrt"] != (ROOT / "etc/tensorrt").read_text().strip():
        refuse(
            "unable to create TensorRT engine: Serialization assertion stdVersionRead == "
            "serializationVersion failed.Version tag does not match"
        )
    if facts["gpu"]["compute_capability"] != compute_capability():
        refuse(
            "unable to create TensorRT engine: The engine plan file is generated on an incompatible device, "
            f"expecting compute {compute_capability()} got compute {facts['gpu']['compute_capability']}, "
            "please rebuild."
        )
    return facts, graph


def bounded(dims, least, most):
    """`ValidateDimension`."""
    if len(dims) != len(most):
        return f"model expected {len(most)} dimensions but received {len(dims)} dimensions"
    for i, (dim, low, high) in enumerate(zip(dims, least, most, strict=True)):
        if dim != -1 and not low <= dim <= high:
            return (
                f"model expected the shape of dimension {i} to be between {low} and {high} but received {dim}"
            )
    return ""


class TritonPythonModel:
    """One instance on one GPU."""

    def initialize(self, args):
        config = json.loads(args["model_config"])
        self.name, self.batch = config["name"], int(config["max_batch_size"])
        folder = Path(args["model_repository"])
        kinds = re.findall(r"KIND_\w+", (folder / "config.pbtxt").read_text())
        if any(kind not in ("KIND_GPU", "KIND_AUTO") for kind in kinds):
            refuse(f"unable to load model '{self.name}', TensorRT backend supports only GPU device")
        path = folder / args["model_version"] / (config.get("default_model_filename") or "model.plan")
        if not path.exists():
            refuse(f"unable to find '{path}' for model instance '{args['model_instance_name']}'")
        self.engine, graph = load_plan(path)
        if any(group.get("profile") for group in config["instance_group"]):
            refuse(
                "Can not set the specified optimization profile. Expected optimization profile index range "
                "0-0"
            )
        self.validate(config)
        core = ov.Core()
        hints = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": 2}
        self.compiled = core.compile_model(core.read_model(graph), "CPU", hints)
        print(
            f"contract backend: {self.name} is ready, "
            f"CUDA_VISIBLE_DEVICES={os.environ.get('CUDA_VISIBLE_DEVICES')}",
            flush=True,
        )

    def validate(self, config):
        """`ValidateIO` and `InitIOBindingBuffers`."""
        inputs, outputs = self.engine["inputs"], self.engine["outputs"]
        if len(inputs) < len(config["input"]):
            refuse(
                f"unable to load model '{self.name}', configuration expects {len(config['input'])} inputs, "
                f"model provides at most {len(inputs)}"
            )
        for kind, rows, known in (("input", config["input"], inputs), ("output", config["output"], outputs)):
            for row in rows:
                if row["name"] not in known:
                    refuse(
                        f"unexpected inference {kind} '{row['name']}', allowed {kind}s are: "
                        f"{', '.join(known)}"
                    )
                if row.get("is_shape_tensor"):
                    refuse(
                        f"{kind} '{row['name']}' for model '{self.name}' is incorrectly marked as a shape "
                        "tensor in the model configuration."
                    )
                self._check_tensor(kind, row, known[row["name"]])
        if missing := sorted(set(inputs) - {row["name"] for row in config["input"]}):
            refuse(f"expected {len(inputs)} inputs, got {len(config['input'])}: {missing[0]} is not bound")
        self.most = {name: list(row["profile"][2]) for name, row in inputs.items()}
        for most in self.most.values():
            most[0] = min(most[0], self.batch)

    def _check_tensor(self, kind, row, known):
        name = row["name"]
        found = row["data_type"].removeprefix("TYPE_")
        if found != known["type"]:
            refuse(
                f"unexpected datatype TYPE_{known['type']} for inference {kind} '{name}', expecting "
                f"TYPE_{found} for {self.name}"
            )
        dims = [int(dim) for dim in row.get("reshape", row).get("shape", row["dims"])]
        if kind == "input" and row.get("allow_ragged_batch"):
            refuse(
                f"model '{self.name}', tensor '{name}': for the model to support ragged input, the engine "
                f"shape is: {known['dims']} while the model config shape is: {dims}"
            )
        full = [-1, *dims] if self.batch else dims
        same = len(known["dims"]) == len(full)
        if not same or any(a != b and -1 not in (a, b) for a, b in zip(known["dims"], full, strict=True)):
            refuse(
                f"model '{self.name}', tensor '{name}': the model expects {len(known['dims'])} dimensions "
                f"(shape {known['dims']}) but the model configuration specifies {len(full)} dimensions "
                f"({full})"
            )
        if kind == "input" and (wrong := bounded(full, known["profile"][0], known["profile"][2])):
            refuse(
                f"model configuration specified invalid shape for input '{name}' for model {self.name}. "
                f"Error details: {wrong}"
            )

    def execute(self, requests):
        """`Run`: one batch; what is wrong with it is the answer to all of its requests."""
        asked = [{tensor.name(): tensor.as_numpy() for tensor in one.inputs()} for one in requests]
        try:
            found = self.run(asked)
        except ValueError as error:
            failed = pb_utils.TritonError(str(error), pb_utils.TritonError.INTERNAL)
            return [pb_utils.InferenceResponse(error=failed) for _ in requests]
        at, answers = 0, []
        for one in asked:
            rows = len(next(iter(one.values())))
            part = [pb_utils.Tensor(name, array[at : at + rows]) for name, array in found.items()]
            answers.append(pb_utils.InferenceResponse(part))
            at += rows
        return answers

    def run(self, asked):
        total = sum(len(next(iter(one.values()))) for one in asked)
        if total != 1 and total > self.batch:
            raise ValueError(f"batch size {total} for '{self.name}', max allowed is {self.batch}")
        inputs = {}
        for name, known in self.engine["inputs"].items():
            parts = [one[name] for one in asked]
            assert len({part.shape[1:] for part in parts}) == 1, "the scheduler joins equal shapes only"
            assert all(part.dtype == TYPES[known["type"]] for part in parts), name
            shape = (total, *parts[0].shape[1:])
            if wrong := bounded(shape, known["profile"][0], self.most[name]):
                raise ValueError(
                    f"request specifies invalid shape for input '{name}' for {self.name}. Error details: "
                    f"{wrong}"
                )
            inputs[name] = np.concatenate(parts)
        print(f"contract backend: {self.name} computes {total} rows of {len(asked)} requests", flush=True)
        found = self.compiled(inputs)
        return {
            name: np.ascontiguousarray(found[i], TYPES[row["type"]])
            for i, (name, row) in enumerate(self.engine["outputs"].items())
        }
