"""Requests made to break a server: valid ones, built from the models' own configurations, each with one to
three things changed.
"""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from tritonclient.grpc import service_pb2

EXTREMES: list[Any] = [
    0,
    -1,
    1,
    2,
    3,
    8,
    9,
    255,
    65_536,
    2**31 - 1,
    2**31,
    2**32,
    2**62,
    2**63 - 1,
    2**63,
    2**64,
    -(2**63),
    1.5,
    1e308,
    "1",
    "",
    None,
    True,
    [],
    {},
    [1],
    {"a": 1},
]
TEXTS = [
    "",
    "a",
    "\x00",
    "\ud800".encode("utf-8", "surrogatepass").decode("utf-8", "replace"),
    "🐚" * 50,
    "a" * 5000,
    "../../x",
    "%s%n",
    "<|startoftranscript|>",
]
TYPES = [
    "BOOL",
    "UINT8",
    "UINT64",
    "INT8",
    "INT32",
    "INT64",
    "FP16",
    "FP32",
    "FP64",
    "BF16",
    "BYTES",
    "TYPE_FP32",
    "",
    "bytes",
]
Tensor = dict[str, Any]
Body = dict[str, Any]


@dataclass
class Attack:
    """One HTTP request: where, what, and the length of its JSON part if binary data follow."""

    path: str
    body: bytes
    headers: dict[str, str] = field(default_factory=dict)


def value(datatype: str, rng: random.Random) -> Any:
    """A plain value of a datatype."""
    if datatype == "BYTES":
        return rng.choice(["sort: lamp boat", "", "a"])
    return (
        rng.random() < 0.5
        if datatype == "BOOL"
        else rng.random()
        if datatype.startswith("FP")
        else rng.randint(1, 8)
    )


def valid(config: dict[str, Any], rng: random.Random) -> Body:
    """An `infer` request that a model takes: what it needs, and some of what it may have."""
    inputs = []
    for row in config["input"]:
        if row.get("optional") and rng.random() < 0.8:
            continue
        datatype = row["data_type"].removeprefix("TYPE_").replace("STRING", "BYTES")
        dims = [int(n) if int(n) > 0 else rng.randint(1, 40) for n in row["dims"]]
        shape = [1, *dims] if config.get("max_batch_size") else dims
        count = 1
        for n in shape:
            count *= n
        inputs.append(
            {
                "name": row["name"],
                "datatype": datatype,
                "shape": shape,
                "data": [value(datatype, rng) for _ in range(count)],
            }
        )
    outputs = [{"name": row["name"]} for row in config["output"] if rng.random() < 0.3]
    return {"inputs": inputs, **({"outputs": outputs} if outputs else {})}


def nested(depth: int) -> str:
    """A list in a list in a list."""
    return "[" * depth + "]" * depth


def _some(rows: list[Any], rng: random.Random) -> Tensor:
    tensors = [row for row in rows if isinstance(row, dict)]
    return dict(rng.choice(tensors)) if tensors else {}


def _replace(body: Body, rng: random.Random, change: Callable[[Tensor], Any]) -> None:
    if isinstance(body.get("inputs"), list) and body["inputs"]:
        i = rng.randrange(len(body["inputs"]))
        if isinstance(body["inputs"][i], dict):
            tensor = copy.deepcopy(body["inputs"][i])
            change(tensor)
            body["inputs"][i] = tensor


def _shape(tensor: Tensor, rng: random.Random) -> None:
    shape = tensor.get("shape")
    if not isinstance(shape, list) or not shape:
        tensor["shape"] = rng.choice(EXTREMES)
    elif rng.random() < 0.7:
        shape[rng.randrange(len(shape))] = rng.choice(EXTREMES)
    elif rng.random() < 0.5:
        shape.insert(rng.randrange(len(shape) + 1), rng.choice(EXTREMES))
    else:
        shape.pop()


def _data(tensor: Tensor, rng: random.Random) -> None:
    data = tensor.get("data")
    if rng.random() < 0.3 or not isinstance(data, list) or not data:
        tensor["data"] = rng.choice(
            [*EXTREMES, *TEXTS, [[[]]], [1, "a", None], [[1], 2], [1e39], [float(2**70)]]
        )
    else:
        data[rng.randrange(len(data))] = rng.choice([*EXTREMES, *TEXTS])


PARAMETERS = [
    {"shared_memory_region": "x", "shared_memory_byte_size": 4},
    {"binary_data_size": 4},
    {"binary_data_size": 2**62},
    {"binary_data_size": -1},
    {"classification": 1},
    {"classification": 2**40},
    {"binary_data": True},
    {"sequence_id": 1, "sequence_start": True},
    {"sequence_id": -1},
    {"priority": 2**63},
    {"timeout": -5},
    {"x": "y"},
    {"x": {"y": [1]}},
    [],
    7,
    {"conch_broken_is_marked": True},
]


def _outputs(body: Body, rng: random.Random, config: dict[str, Any]) -> None:
    name = rng.choice([row["name"] for row in config["output"]] + ["nothing"])
    body["outputs"] = rng.choice(
        [
            [{"name": name, "parameters": rng.choice(PARAMETERS)}],
            [{"name": name}, {"name": name}],
            [7],
            {},
            "x",
            [{}],
        ]
    )


TENSOR_CHANGES: list[Callable[[Tensor, random.Random], Any]] = [
    _shape,
    _data,
    lambda tensor, rng: tensor.update(datatype=rng.choice([*TYPES, 7, None])),
    lambda tensor, rng: tensor.update(name=rng.choice(["nothing", "", 7, None, "a" * 5000])),
    lambda tensor, rng: tensor.pop(rng.choice(list(tensor))),
    lambda tensor, rng: tensor.update(parameters=rng.choice(PARAMETERS)),
]
LIST_CHANGES: list[Callable[[list[Any], random.Random], Any]] = [
    lambda rows, rng: rows.append(_some(rows, rng)),
    lambda rows, _: rows.clear(),
    lambda rows, _: rows.reverse(),
    lambda rows, _: rows.extend(rows * 50),
]


def mutate(body: Body, rng: random.Random, config: dict[str, Any]) -> None:
    """One change."""
    pick = rng.randrange(9)
    if pick < len(TENSOR_CHANGES):
        _replace(body, rng, lambda tensor: TENSOR_CHANGES[pick](tensor, rng))
    elif pick == 6:
        _outputs(body, rng, config)
    elif pick == 7:
        key = rng.choice(["id", "parameters", "inputs", "outputs", "extra"])
        body[key] = rng.choice([*EXTREMES, *TEXTS, *PARAMETERS])
    elif isinstance(body.get("inputs"), list):
        rng.choice(LIST_CHANGES)(body["inputs"], rng)


def bytes_of(body: Body, rng: random.Random) -> bytes:
    """The body as sent; sometimes cut, with a byte changed, a key twice, or nested without end."""
    text = json.dumps(body)
    pick = rng.random()
    if pick < 0.05:
        return text[: rng.randrange(len(text) + 1)].encode()
    if pick < 0.1:
        raw = bytearray(text.encode())
        raw[rng.randrange(len(raw))] = rng.randrange(256)
        return bytes(raw)
    if pick < 0.13:
        return text.replace('"shape": [', '"shape": [1, 4611686018427387904], "shape": [', 1).encode()
    if pick < 0.16:
        return text.replace('"data": [', f'"data": [{nested(rng.choice([10, 1000, 100_000]))},', 1).encode()
    return text.encode()


def http(config: dict[str, Any], prefix: str, rng: random.Random) -> Attack:
    """A request for one of a model's listeners."""
    body = valid(config, rng)
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        mutate(body, rng, config)
    path = f"{prefix}/v2/models/{config['name']}"
    how = rng.random()
    if how < 0.25:
        rows = (
            [row for row in body.get("inputs") or [] if isinstance(row, dict)]
            if isinstance(body.get("inputs"), list)
            else []
        )
        fields = {str(row.get("name")): row.get("data") for row in rows}
        fields |= {key: entry for key, entry in body.items() if key not in ("inputs", "outputs")}
        return Attack(
            f"{path}/{rng.choice(['generate', 'generate_stream'])}",
            bytes_of(fields, rng),
            {"Content-Type": "application/json"},
        )
    raw = bytes_of(body, rng)
    headers = {
        "Content-Type": rng.choice(
            [
                "application/json",
                "application/octet-stream",
                "application/x-www-form-urlencoded",
                "text/plain",
            ]
        )
    }
    if how < 0.5:
        tail = rng.randbytes(rng.choice([0, 1, 4, 8, 100, 5000]))
        length = rng.choice([len(raw), len(raw), len(raw) - 1, len(raw) + 1, 0, 2**40, -1, "x"])
        return Attack(
            f"{path}/infer", raw + tail, {**headers, "Inference-Header-Content-Length": str(length)}
        )
    return Attack(f"{path}/infer", raw, headers)


def packed(row: Tensor) -> bytes:
    """A tensor's values in their binary form."""
    if row["datatype"] == "BYTES":
        return b"".join(len(text.encode()).to_bytes(4, "little") + text.encode() for text in row["data"])
    kinds = {
        "FP16": "f2",
        "FP32": "f4",
        "FP64": "f8",
        "BOOL": "?",
        "INT32": "i4",
        "INT64": "i8",
        "UINT64": "u8",
        "INT8": "i1",
        "UINT8": "u1",
    }
    return np.array(row["data"], kinds[row["datatype"]]).tobytes()


Message = service_pb2.ModelInferRequest
CONTENTS = {
    "BYTES": "bytes_contents",
    "BOOL": "bool_contents",
    "FP16": "fp32_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    "INT64": "int64_contents",
    "UINT64": "uint64_contents",
}
BAD_SIZES = [0, -1, 2, 2**31, 2**62, 2**63 - 1, -(2**63)]


def message(config: dict[str, Any], rng: random.Random) -> Message:
    """A ModelInferRequest that a model takes, its tensors raw or typed."""
    made = Message(model_name=config["name"], id=rng.choice(["", "1"]))
    body, raw = valid(config, rng), rng.random() < 0.5
    for row in body["inputs"]:
        tensor = made.inputs.add(name=row["name"], datatype=row["datatype"], shape=row["shape"])
        if raw:
            made.raw_input_contents.append(packed(row))
        else:
            values = [text.encode() for text in row["data"]] if row["datatype"] == "BYTES" else row["data"]
            getattr(tensor.contents, CONTENTS.get(row["datatype"], "int_contents")).extend(values)
    for row in body.get("outputs", []):
        made.outputs.add(name=row["name"])
    return made


def _shape_of(made: Message, rng: random.Random) -> None:
    tensor = rng.choice(made.inputs)
    tensor.shape[rng.randrange(len(tensor.shape))] = rng.choice(BAD_SIZES)


def _dims_of(made: Message, rng: random.Random) -> None:
    shape = rng.choice(made.inputs).shape
    if rng.random() < 0.5 and shape:
        shape.pop()
    else:
        shape.append(rng.choice(BAD_SIZES))


def _tensor_of(made: Message, rng: random.Random) -> None:
    tensor = rng.choice(made.inputs)
    if rng.random() < 0.5:
        tensor.datatype = rng.choice(TYPES)
    else:
        tensor.name = rng.choice(["nothing", "", "a" * 5000])


def _bytes_of(made: Message, rng: random.Random) -> None:
    found = rng.randbytes(rng.choice([0, 1, 4, 5, 8, 100, 5000]))
    if made.raw_input_contents and rng.random() < 0.8:
        made.raw_input_contents[rng.randrange(len(made.raw_input_contents))] = found
    else:
        made.raw_input_contents.append(found)


def _contents_of(made: Message, rng: random.Random) -> None:
    contents = rng.choice(made.inputs).contents
    contents.int_contents.extend([rng.choice([0, -1, 2**31 - 1])] * rng.choice([1, 2, 1000]))


def _parameters_of(made: Message, rng: random.Random) -> None:
    where = rng.choice([made, *made.inputs])
    name = rng.choice(
        [
            "priority",
            "timeout",
            "sequence_id",
            "x",
            "triton_enable_empty_final_response",
            "shared_memory_region",
            "binary_data_size",
            "classification",
        ]
    )
    kind = rng.choice(["int64", "string", "bool", "double", "uint64"])
    values: dict[str, Any] = {
        "int64": rng.choice([0, -1, 1, 2**62]),
        "string": "x",
        "bool": True,
        "double": 1e308,
        "uint64": 2**64 - 1,
    }
    setattr(where.parameters[name], f"{kind}_param", values[kind])


def _outputs_of(made: Message, rng: random.Random) -> None:
    output = made.outputs.add(name=rng.choice([*[output.name for output in made.outputs], "nothing", ""]))
    output.parameters[
        rng.choice(["classification", "shared_memory_region", "binary_data"])
    ].int64_param = rng.choice([0, 1, 3, 2**40])


def _inputs_of(made: Message, rng: random.Random) -> None:
    rng.choice(
        [lambda: made.inputs.add().CopyFrom(rng.choice(made.inputs)), made.inputs.pop, made.inputs.add]
    )()


def _head_of(made: Message, rng: random.Random) -> None:
    setattr(
        made,
        *rng.choice(
            [
                ("model_name", ""),
                ("model_name", "x" * 3000),
                ("model_name", "a/b"),
                ("model_version", "2"),
                ("model_version", "x"),
                ("id", "x" * 2000),
            ]
        ),
    )


CHANGES = (
    _shape_of,
    _dims_of,
    _tensor_of,
    _bytes_of,
    _contents_of,
    _parameters_of,
    _outputs_of,
    _inputs_of,
    _head_of,
)


def grpc(config: dict[str, Any], rng: random.Random) -> bytes:
    """A valid ModelInferRequest with none to three changes, sometimes with a byte of it changed."""
    made = message(config, rng)
    for _ in range(rng.choice([0, 1, 1, 1, 2, 3])):
        if made.inputs and all(tensor.shape for tensor in made.inputs):
            rng.choice(CHANGES)(made, rng)
    data = bytearray(made.SerializeToString())
    if rng.random() < 0.1 and data:
        data[rng.randrange(len(data))] = rng.randrange(256)
    return bytes(data)
