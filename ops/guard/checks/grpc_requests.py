"""Convert gRPC inference requests (KServe's ModelInferRequest), checked, to equivalent HTTP requests, and the
answers back.

Both protocols encode a tensor's data in the same bytes: row-major, little-endian, BYTES elements preceded by
their lengths as 32-bit numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import orjson
from tritonclient.grpc import service_pb2

from .contract import (
    TYPES,
    Contract,
    RequestRefused,
    Spec,
    check_binary,
    check_output,
    check_parameter,
    check_range,
    check_shape,
    most_text,
)
from .json_requests import Checked, Name, assembled, tensor_row

# The typed field that carries each datatype when there are no raw_input_contents; FP16 and BF16 are raw only.
CONTENTS = {
    "BOOL": "bool_contents",
    "INT8": "int_contents",
    "INT16": "int_contents",
    "INT32": "int_contents",
    "INT64": "int64_contents",
    "UINT8": "uint_contents",
    "UINT16": "uint_contents",
    "UINT32": "uint_contents",
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    "BYTES": "bytes_contents",
}
MAX_TENSORS = 256
# NVIDIA's C++ client says it with every request; it means nothing for one answer, and over HTTP Triton takes
# no parameter of such a name.
STREAMS_ONLY = "triton_enable_empty_final_response"


def check(contract: Contract, request: service_pb2.ModelInferRequest, name: Name) -> Checked:
    """Check that the model can take a ModelInferRequest. `name` maps its id.

    Raises:
        RequestRefused: it does not fit the model.
    """
    raw = request.raw_input_contents
    if len(request.inputs) > MAX_TENSORS or len(request.outputs) > MAX_TENSORS:
        raise RequestRefused(f"a request has at most {MAX_TENSORS} inputs and outputs")
    if raw and len(raw) != len(request.inputs):
        raise RequestRefused(f"raw_input_contents has {len(raw)} entries for {len(request.inputs)} inputs")
    parameters = _scalars(request.parameters)
    for key, value in parameters.items():
        check_parameter(key, value)
    parameters.pop(STREAMS_ONLY, None)
    inputs = [_input(contract, tensor, raw[i] if raw else None) for i, tensor in enumerate(request.inputs)]
    outputs = [_output(contract, output) for output in request.outputs]
    if not outputs:
        parameters["binary_data_output"] = True
    return assembled(contract, request.id, name, inputs, parameters, outputs)


def _input(contract: Contract, tensor: Any, raw: bytes | None) -> tuple[dict[str, Any], bytes]:
    """Return a tensor, and its data in binary form."""
    if tensor.parameters:
        raise RequestRefused(
            f"input {tensor.name[:80]!r} may have no parameters (shared memory is closed here)"
        )
    spec, count = check_shape(contract, tensor.name, tensor.datatype, list(tensor.shape))
    given = [field.name for field, _ in tensor.contents.ListFields()]
    if raw is None:
        raw = _packed(tensor, spec, count, given)
    elif given:
        raise RequestRefused(f"input {tensor.name!r} has both contents and raw_input_contents")
    else:
        check_binary(tensor.name, spec, count, memoryview(raw))
    return tensor_row(tensor.name, tensor.shape, tensor.datatype, raw), raw


def _output(contract: Contract, output: Any) -> dict[str, Any]:
    found = _scalars(output.parameters)
    if found.keys() - {"classification", "binary_data"}:
        raise RequestRefused(
            f"output {output.name[:80]!r} may have the parameters binary_data and classification only "
            "(shared memory is closed here)"
        )
    check_output(contract, output.name, found.get("classification"))
    classes = {"classification": found["classification"]} if "classification" in found else {}
    return {"name": output.name, "parameters": {"binary_data": True, **classes}}


def response(body: bytes, head_bytes: str | None, given_id: str) -> bytes:
    """Convert Triton's answer to the HTTP request to a ModelInferResponse, with the client's id."""
    length = int(head_bytes) if head_bytes else len(body)
    head, at = orjson.loads(body[:length]), length
    made = service_pb2.ModelInferResponse(
        model_name=head["model_name"], model_version=head["model_version"], id=given_id
    )
    for name, value in head.get("parameters", {}).items():
        kind = (
            "bool_param"
            if isinstance(value, bool)
            else "int64_param"
            if isinstance(value, int)
            else "string_param"
        )
        setattr(made.parameters[name], kind, value)
    for row in head.get("outputs", []):
        made.outputs.add(name=row["name"], datatype=row["datatype"], shape=row["shape"])
        size = row.get("parameters", {}).get("binary_data_size", 0)
        made.raw_output_contents.append(body[at : at + size])
        at += size
    return bytes(made.SerializeToString())


def error_message(body: bytes) -> str:
    """Return the message in an error's body."""
    try:
        return str(orjson.loads(body)["error"])
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return body[:200].decode("utf-8", "replace")


def _scalars(parameters: Mapping[str, Any]) -> dict[str, object]:
    return dict(_scalar(name, value) for name, value in parameters.items())


def _scalar(name: str, value: Any) -> tuple[str, object]:
    kind = value.WhichOneof("parameter_choice")
    if kind is None:
        raise RequestRefused(f"parameter {name[:80]!r} has no value")
    return name, getattr(value, kind)


def _packed(tensor: Any, spec: Spec, count: int, given: list[str]) -> bytes:
    """Encode typed contents as binary data."""
    wanted = CONTENTS.get(spec.datatype)
    if wanted is None or given != [wanted]:
        raise RequestRefused(
            f"input {tensor.name!r} is {spec.datatype}; send it as raw_input_contents"
            + (f" or {wanted} alone" if wanted else "")
        )
    values = getattr(tensor.contents, wanted)
    if len(values) != count:
        raise RequestRefused(f"input {tensor.name!r} has {len(values)} values; its shape asks for {count}")
    if spec.datatype == "BYTES":
        if sum(map(len, values)) > most_text(tensor.name):
            raise RequestRefused(
                f"input {tensor.name!r} has more than {most_text(tensor.name)} bytes of text"
            )
        return b"".join(part for text in values for part in (len(text).to_bytes(4, "little"), text))
    if TYPES[spec.datatype].itemsize < 4:
        check_range(tensor.name, spec.datatype, values)
    return bytes(np.array(values, TYPES[spec.datatype]).tobytes())
