"""Inputs and outputs of a Triton model, read from its own configuration (`GET /v2/models/NAME/config`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from conch.names import LONGEST, PICTURE_URLS
from conch.pictures import MOST_URL_BYTES

MAX_TENSOR_BYTES = 128 << 20
MAX_TEXT_BYTES = 4 << 20
# Numpy's name of each datatype (KServe v2, "Tensor Data Types"), for BF16 one of its size; BYTES elements
# carry their own lengths.
NAMES = {
    "BOOL": "?", "UINT8": "u1", "INT8": "i1", "UINT16": "u2", "INT16": "i2", "FP16": "f2", "BF16": "u2",
    "UINT32": "u4", "INT32": "i4", "FP32": "f4", "UINT64": "u8", "INT64": "i8", "FP64": "f8",
}  # fmt: skip
TYPES = {name: np.dtype(numpys) for name, numpys in NAMES.items()}
RAW_ONLY = {"FP16", "BF16"}  # neither JSON nor the typed fields of gRPC carry them


class RequestRefused(Exception):
    """A request that its model cannot take; the message names the field and what it must be."""


@dataclass(frozen=True)
class Spec:
    """One tensor: its datatype and dims, the batch first if there is one; -1 stands for any size."""

    datatype: str
    dims: tuple[int, ...]
    optional: bool = False


@dataclass(frozen=True)
class Contract:
    """One model. `max_batch` is 0 where requests have no batch dimension. `longest` is the maximum of a
    variable size, where a parameter of the model states it because its engine could not refuse more by
    itself; 0 for any.
    """

    name: str
    max_batch: int
    inputs: Mapping[str, Spec]
    outputs: Mapping[str, Spec]
    decoupled: bool = False
    longest: int = 0

    @classmethod
    def parse(cls, config: Mapping[str, Any]) -> Contract:
        """Parse Triton's ModelConfig in JSON, whose 64-bit numbers may be strings."""
        batch = int(config.get("max_batch_size", 0))
        rows = {
            kind: {row["name"]: _spec(row, batch) for row in config.get(kind, [])}
            for kind in ("input", "output")
        }
        decoupled = bool(config.get("model_transaction_policy", {}).get("decoupled", False))
        longest = config.get("parameters", {}).get(LONGEST, {}).get("string_value", "0")
        return cls(config["name"], batch, rows["input"], rows["output"], decoupled, int(longest))


def _spec(row: Mapping[str, Any], batch: int) -> Spec:
    datatype = str(row["data_type"]).removeprefix("TYPE_")
    dims = tuple(int(n) for n in row["dims"])
    return Spec(
        "BYTES" if datatype == "STRING" else datatype,
        (-1, *dims) if batch else dims,
        bool(row.get("optional")),
    )


def check_shape(contract: Contract, name: str, datatype: object, shape: Sequence[object]) -> tuple[Spec, int]:
    """Check a shape, and return the input's specification and its number of elements.

    Raises:
        RequestRefused: unknown name, another datatype, or a shape that does not fit.
    """
    spec = contract.inputs.get(name)
    if spec is None:
        raise RequestRefused(
            f"unknown input {name[:80]!r}; {contract.name} takes: {', '.join(contract.inputs)}"
        )
    if datatype != spec.datatype:
        raise RequestRefused(
            f"input {name!r} has datatype {str(datatype)[:20]!r}; it must be {spec.datatype}"
        )
    sizes = [n for n in shape if isinstance(n, int) and not isinstance(n, bool)]
    if len(sizes) != len(shape) or len(sizes) != len(spec.dims):
        raise RequestRefused(
            f"input {name!r} has a shape of {len(shape)} dimensions; it must be {list(spec.dims)}"
        )
    if any(n < 1 or n != want != -1 for n, want in zip(sizes, spec.dims, strict=True)):
        raise RequestRefused(
            f"input {name!r} has shape {str(sizes)[:80]}; it must be {list(spec.dims)}, where -1 is any size "
            "from 1"
        )
    free = [n for n, want in zip(sizes, spec.dims, strict=True) if want == -1][bool(contract.max_batch) :]
    if contract.longest and max(free, default=0) > contract.longest:
        raise RequestRefused(
            f"input {name!r} has shape {str(sizes)[:80]}; {contract.name} takes {contract.longest} in a row "
            "at most"
        )
    if contract.max_batch and sizes[0] > contract.max_batch:
        raise RequestRefused(
            f"input {name!r} has a batch of {sizes[0]}; {contract.name} takes {contract.max_batch} at most"
        )
    count = prod(sizes)
    if count * (TYPES[spec.datatype].itemsize if spec.datatype in TYPES else 4) > MAX_TENSOR_BYTES:
        raise RequestRefused(
            f"input {name!r} of shape {str(sizes)[:80]} exceeds {MAX_TENSOR_BYTES >> 20} MiB"
        )
    return spec, count


def most_text(name: str) -> int:
    """Return the maximum bytes of text that an input may have."""
    return MOST_URL_BYTES if name in PICTURE_URLS else MAX_TEXT_BYTES


def check_binary(name: str, spec: Spec, count: int, data: memoryview) -> None:
    """Check that a tensor has as many bytes as its shape requires.

    Raises:
        RequestRefused: more, fewer, or elements of BYTES that run out of it.
    """
    if spec.datatype != "BYTES":
        if len(data) != (wanted := count * TYPES[spec.datatype].itemsize):
            raise RequestRefused(f"input {name!r} has {len(data)} bytes of data; its shape asks for {wanted}")
        return
    if len(data) > most_text(name):
        raise RequestRefused(f"input {name!r} has {len(data)} bytes of text; send at most {most_text(name)}")
    at = found = 0
    while at + 4 <= len(data) and found <= count:
        at += 4 + int.from_bytes(data[at : at + 4], "little")
        found += 1
    if at != len(data) or found != count:
        raise RequestRefused(
            f"input {name!r}: its data must be {count} elements, each preceded by its length as a 32-bit "
            "number"
        )


def check_range(name: str, datatype: str, values: Sequence[Any]) -> None:
    """Check that integers fit their datatype; others pass.

    Raises:
        RequestRefused: one does not.
    """
    if TYPES[datatype].kind in "iu":
        fits = np.iinfo(TYPES[datatype])
        if not fits.min <= min(values) <= max(values) <= fits.max:
            raise RequestRefused(f"input {name!r}: values must be from {fits.min} to {fits.max}")


def check_complete(contract: Contract, names: Sequence[str], batches: Sequence[int]) -> None:
    """Check that each input comes once, no required one is missing, and all batch sizes are equal.

    Raises:
        RequestRefused: otherwise.
    """
    if len(set(names)) != len(names):
        raise RequestRefused("an input is given twice; send each once")
    missing = [name for name, spec in contract.inputs.items() if not spec.optional and name not in names]
    if missing:
        raise RequestRefused(f"input {missing[0]!r} is missing; {contract.name} needs it")
    if contract.max_batch and len(set(batches)) > 1:
        raise RequestRefused(f"inputs have different batch sizes: {sorted(set(batches))}; make them equal")


def check_output(contract: Contract, name: str, classes: object = None) -> None:
    """Check that the model has an output, and that the classification extension can be computed.

    Raises:
        RequestRefused: otherwise.
    """
    spec = contract.outputs.get(name)
    if spec is None:
        raise RequestRefused(
            f"unknown output {name[:80]!r}; {contract.name} returns: {', '.join(contract.outputs)}"
        )
    if classes is None:
        return
    floats = spec.datatype in TYPES and TYPES[spec.datatype].kind == "f"
    if (
        not floats or -1 in spec.dims[bool(contract.max_batch) :]
    ):  # one that may be empty ends tritonserver 24.10
        raise RequestRefused(
            f"output {name!r} is {spec.datatype} of {list(spec.dims)}; classification is for floating-point "
            "outputs of a fixed size"
        )
    if not isinstance(classes, int) or isinstance(classes, bool) or not 1 <= classes <= 1000:
        raise RequestRefused(f"output {name!r}: classification must be a number from 1 to 1000")


# Request parameters of KServe v2's extensions (sequence, schedule policy, binary tensor data) and of Triton's
# gRPC streams.
PARAMETERS: Mapping[str, tuple[type, ...]] = {
    "sequence_id": (int, str),
    "sequence_start": (bool,),
    "sequence_end": (bool,),
    "priority": (int,),
    "timeout": (int,),
    "binary_data_output": (bool,),
    "triton_enable_empty_final_response": (bool,),
    "Streaming": (bool,),  # what inflight_batcher_llm_client.py sends; its backend does not look at it
}


def check_parameter(name: str, value: object) -> None:
    """Check that a request parameter is known and of its type.

    Raises:
        RequestRefused: otherwise.
    """
    kinds = PARAMETERS.get(name)
    if kinds is None:
        raise RequestRefused(
            f"parameter {name[:80]!r} is unknown; requests may have: {', '.join(PARAMETERS)}"
        )
    if type(value) not in kinds:
        raise RequestRefused(
            f"parameter {name!r} must be of type {' or '.join(kind.__name__ for kind in kinds)}"
        )
    if isinstance(value, int) and not 0 <= value < 1 << 63:
        raise RequestRefused(f"parameter {name!r} must be from 0 to 2^63 - 1")
    if isinstance(value, str) and len(value) > 1024:
        raise RequestRefused(f"parameter {name!r} is longer than 1024 characters")


def check_id(value: object) -> str:
    """Check a request id.

    Raises:
        RequestRefused: not a string, or longer than 1024 characters.
    """
    if not isinstance(value, str) or len(value) > 1024:
        raise RequestRefused("id must be a string of at most 1024 characters")
    return value
