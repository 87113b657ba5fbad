"""Inference requests over HTTP: KServe v2's `infer` (JSON followed by binary tensors) and Triton's
`generate`.

Accepted requests are serialized again: Triton's parser only meets JSON that was made here, so two parsers
cannot interpret one body differently (a duplicate key, for example), and no client's nesting reaches it.
https://kserve.github.io/website/latest/modelserving/data_plane/v2_protocol/, Triton's
docs/protocol/extension_{binary_data,generate}.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson

from .contract import (
    RAW_ONLY,
    TYPES,
    Contract,
    RequestRefused,
    Spec,
    check_binary,
    check_complete,
    check_id,
    check_output,
    check_parameter,
    check_range,
    check_shape,
    most_text,
)

MAX_HEAD_BYTES = 1 << 20
LARGEST_FP32 = 3.4028235e38
MAX_JSON_BYTES = 24 << 20  # 30 s of sound in decimals are 11 MB


Name = Callable[[str], str]
STOP = "stop"  # TensorRT-LLM's input that ends the request with the id of the one it comes with


def named(given: str, name: Name, *, stops: bool) -> str:
    """Return the id that the server gets; a request that stops another keeps its id, or its lack of one."""
    return given if stops else name(given)


@dataclass(frozen=True)
class Checked:
    """A request that its model can take. `head_bytes` is the length of the JSON part, 0 where the body is
    only JSON; `id` is the request's.
    """

    body: Sequence[bytes | memoryview]
    head_bytes: int = 0
    id: str = ""


def infer(contract: Contract, body: bytes, head_bytes: int | None, name: Name) -> Checked:
    """Check an `infer` request and return it with binary tensors. `head_bytes` is the header
    Inference-Header-Content-Length; `name` maps its id.

    Raises:
        RequestRefused: it does not fit the model.
    """
    if head_bytes is not None and not 0 <= head_bytes <= len(body):
        raise RequestRefused(
            f"Inference-Header-Content-Length must be from 0 to the body's {len(body)} bytes"
        )
    view = memoryview(body)
    request = _object(
        view[:head_bytes],
        MAX_JSON_BYTES if head_bytes is None else MAX_HEAD_BYTES,
        ("id", "parameters", "inputs", "outputs"),
    )
    section = view[len(body) if head_bytes is None else head_bytes :]
    inputs = list(_inputs(contract, _list(request, "inputs"), section))
    used = sum(len(data) for _, data, binary in inputs if binary)
    if used != len(section):
        raise RequestRefused(
            f"{len(section)} bytes of binary data were sent, but the inputs' binary_data_size add up to "
            f"{used}"
        )
    parameters = _parameters(request.get("parameters", {}))
    outputs = [_output(contract, row) for row in _list(request, "outputs", empty=True)]
    rows = [(row, data) for row, data, _ in inputs]
    return assembled(contract, request.get("id", ""), name, rows, parameters, outputs)


def tensor_row(name: str, shape: Sequence[int], datatype: str, data: bytes | memoryview) -> dict[str, Any]:
    """Return an input with binary data as Triton shall read it."""
    parameters = {"binary_data_size": len(data)}
    return {"name": name, "shape": [*shape], "datatype": datatype, "parameters": parameters}


def assembled(
    contract: Contract,
    given: object,
    name: Name,
    inputs: Sequence[tuple[dict[str, Any], bytes | memoryview]],
    parameters: Mapping[str, object],
    outputs: Sequence[Mapping[str, Any]],
) -> Checked:
    """Return a request with binary tensors from checked parts. `given` is its id, which `name` maps.

    Raises:
        RequestRefused: the parts do not fit together.
    """
    rows = [row for row, _ in inputs]
    check_complete(contract, [row["name"] for row in rows], [row["shape"][0] for row in rows])
    if len({row["name"] for row in outputs}) != len(outputs):
        raise RequestRefused("an output is asked for twice; name each once")
    stops = any(row["name"] == STOP and any(data) for row, data in inputs)
    identity = named(check_id(given), name, stops=stops)
    optional = {"parameters": parameters, "outputs": outputs}
    head = {"id": identity, "inputs": rows, **{key: part for key, part in optional.items() if part}}
    text = orjson.dumps(head)
    return Checked([text, *(data for _, data in inputs)], len(text), identity)


def generate(contract: Contract, body: bytes, name: Name) -> Checked:
    """Check a `generate` request: one value or a flat list for each input, under the inputs' names.

    Raises:
        RequestRefused: it does not fit the model.
    """
    request = _object(memoryview(body), MAX_JSON_BYTES, None)
    nested = request.pop("parameters", {})
    if not isinstance(nested, dict) or nested.keys() & request.keys():
        raise RequestRefused("parameters must be an object; do not repeat its fields outside it")
    request.update(nested)
    if "stream" not in contract.inputs:
        request.pop("stream", None)  # other servers' clients send it; here the path says so
    identity = named(check_id(request.pop("id", "")), name, stops=request.get(STOP) in (True, [True]))
    fields: dict[str, Any] = {"id": identity}
    for key, value in request.items():
        if key in contract.inputs:
            if value != [] or not contract.inputs[key].optional:  # an empty list is what was not given
                fields[key] = _field(contract, key, value)
        else:
            _known(contract, key, value)
            fields[key] = value
    names = [key for key in fields if key in contract.inputs]
    check_complete(contract, names, [1] * len(names))
    return Checked([orjson.dumps(fields)], id=identity)


def _known(contract: Contract, name: str, value: object) -> None:
    try:
        check_parameter(name, value)
    except RequestRefused:
        if isinstance(value, (dict, list)) or name not in ("sequence_id", "priority", "timeout"):
            raise RequestRefused(
                f"field {name[:80]!r} is unknown; {contract.name} takes: {', '.join(contract.inputs)}"
            ) from None
        raise


def _object(text: memoryview, most: int, known: Sequence[str] | None) -> dict[str, Any]:
    if len(text) > most:
        raise RequestRefused(
            f"the JSON part has {len(text)} bytes; send at most {most}, and large tensors as binary data"
        )
    try:
        request = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise RequestRefused(f"the body is not valid JSON: {error}") from None
    if not isinstance(request, dict):
        raise RequestRefused("the body must be a JSON object")
    if known is not None and (unknown := request.keys() - set(known)):
        raise RequestRefused(f"field {min(unknown)[:80]!r} is unknown; a request has: {', '.join(known)}")
    return request


def _list(request: dict[str, Any], name: str, *, empty: bool = False) -> list[dict[str, Any]]:
    rows = request.get(name, [])
    if (
        not isinstance(rows, list)
        or len(rows) > 256
        or not all(isinstance(row, dict) and isinstance(row.get("name"), str) for row in rows)
    ):
        raise RequestRefused(f"{name} must be a list of at most 256 objects with a name")
    if not rows and not empty:
        raise RequestRefused(f"{name} is missing; a request needs at least one")
    return rows


def _parameters(found: object) -> dict[str, Any]:
    if not isinstance(found, dict):
        raise RequestRefused("parameters must be an object")
    for name, value in found.items():
        check_parameter(name, value)
    return found


Row = tuple[dict[str, Any], bytes | memoryview, bool]


def _inputs(contract: Contract, rows: Iterable[dict[str, Any]], section: memoryview) -> Iterator[Row]:
    """Yield each input as Triton shall read it, its data, and whether it was binary already."""
    at = 0
    for row in rows:
        name = row["name"]
        if unknown := row.keys() - {"name", "shape", "datatype", "parameters", "data"}:
            raise RequestRefused(f"input {name[:80]!r}: field {min(unknown)[:80]!r} is unknown")
        given = row.get("shape")
        shape = given if isinstance(given, list) else []
        spec, count = check_shape(contract, name, row.get("datatype"), shape)
        size = _binary_size(name, row.get("parameters", {}))
        if size is None:
            data: bytes | memoryview = _packed(name, spec, count, row.get("data"))
        elif "data" in row:
            raise RequestRefused(f"input {name!r} has both data and binary_data_size")
        else:
            data, at = section[at : at + size], at + size
        check_binary(name, spec, count, memoryview(data))
        yield tensor_row(name, shape, spec.datatype, data), data, size is not None


def _binary_size(name: str, parameters: object) -> int | None:
    if not isinstance(parameters, dict) or parameters.keys() - {"binary_data_size"}:
        raise RequestRefused(
            f"input {name!r}: parameters may have binary_data_size only (shared memory is closed here)"
        )
    size = parameters.get("binary_data_size")
    if size is not None and (not isinstance(size, int) or isinstance(size, bool) or size < 0):
        raise RequestRefused(f"input {name!r}: binary_data_size must be a number from 0")
    return size


def _flat(name: str, data: Any, count: int) -> list[Any]:
    """Return the row-major values of a list, which may be nested like the tensor."""
    rows: list[Any] = data if isinstance(data, list) else [data]
    while rows and isinstance(rows[0], list):
        if not all(isinstance(row, list) for row in rows):
            raise RequestRefused(f"input {name!r}: data mixes lists and values")
        rows = [value for row in rows for value in row]
    if len(rows) != count:
        raise RequestRefused(f"input {name!r} has {len(rows)} values; its shape asks for {count}")
    return rows


def _packed(name: str, spec: Spec, count: int, data: object) -> bytes:
    """Encode JSON values as binary data."""
    if data is None:
        raise RequestRefused(f"input {name!r} has neither data nor binary_data_size")
    values = _flat(name, data, count)
    if spec.datatype == "BYTES":
        if not all(isinstance(value, str) for value in values):
            raise RequestRefused(f"input {name!r}: data must be strings")
        texts = [value.encode() for value in values]
        return b"".join(part for text in texts for part in (len(text).to_bytes(4, "little"), text))
    if spec.datatype in RAW_ONLY:
        raise RequestRefused(
            f"input {name!r} is {spec.datatype}, which JSON cannot carry; send it as binary data"
        )
    _check_values(name, spec.datatype, values)
    return bytes(np.array(values, TYPES[spec.datatype]).tobytes())


def _check_values(name: str, datatype: str, values: list[Any]) -> None:
    allowed: dict[str, set[type]] = {"b": {bool}, "f": {int, float}}
    kinds, wanted = set(map(type, values)), allowed.get(TYPES[datatype].kind, {int})
    if kinds - wanted:
        raise RequestRefused(
            f"input {name!r}: data must be {datatype}, not "
            f"{', '.join(sorted(kind.__name__ for kind in kinds - wanted))}"
        )
    check_range(name, datatype, values)
    if datatype == "FP32" and not -LARGEST_FP32 <= min(values) <= max(values) <= LARGEST_FP32:
        raise RequestRefused(f"input {name!r}: a value is too large for FP32")


def _output(contract: Contract, row: dict[str, Any]) -> dict[str, Any]:
    name, parameters = row["name"], row.get("parameters", {})
    if (
        row.keys() - {"name", "parameters"}
        or not isinstance(parameters, dict)
        or parameters.keys() - {"binary_data", "classification"}
    ):
        raise RequestRefused(
            f"output {name[:80]!r} may have the parameters binary_data and classification only (shared "
            "memory is closed here)"
        )
    if not isinstance(parameters.get("binary_data", False), bool):
        raise RequestRefused(f"output {name!r}: binary_data must be true or false")
    check_output(contract, name, parameters.get("classification"))
    return {"name": name, "parameters": parameters} if parameters else {"name": name}


def _field(contract: Contract, name: str, value: object) -> object:
    """Return the input for a value of `generate`, from which Triton makes a tensor of shape [1] or [n] (after
    a batch of 1).
    """
    spec = contract.inputs[name]
    values = value if isinstance(value, list) else [value]
    shape = [1] * bool(contract.max_batch) + [len(values)]
    if len(spec.dims) > len(shape):
        raise RequestRefused(
            f"input {name!r} has {len(spec.dims)} dimensions; send it with infer instead of generate"
        )
    check_shape(contract, name, spec.datatype, shape)
    if spec.datatype == "BYTES":
        if not all(isinstance(text, str) for text in values):
            raise RequestRefused(f"input {name!r} must be a string or a list of strings")
        if sum(map(len, values)) > most_text(name):
            raise RequestRefused(f"input {name!r} has more than {most_text(name)} characters of text")
    elif spec.datatype in RAW_ONLY:
        raise RequestRefused(
            f"input {name!r} is {spec.datatype}, which JSON cannot carry; send it with infer as binary data"
        )
    else:
        _check_values(name, spec.datatype, values)
    return value
