"""The tensors that TensorRT-LLM's engine model takes and gives, and the check that a double of it makes."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.fakes.nvidia_template import ENGINE

INPUTS = {row["name"]: row for row in ENGINE["inputs"]}
OUTPUTS = {row["name"] for row in ENGINE["outputs"]}
NUMPY = {
    "TYPE_INT32": np.int32,
    "TYPE_FP32": np.float32,
    "TYPE_BOOL": np.bool_,
    "TYPE_UINT64": np.uint64,
    "${encoder_input_features_data_type}": np.float16,
}


def check(arrays: dict[str, NDArray[Any]]) -> None:
    """None but the contract's tensors, each of its dtype and rank, with as many rows; none is missing."""
    rows = len(arrays["request_output_len"])
    for name, array in arrays.items():
        assert name in INPUTS, f"{name} is no tensor of TensorRT-LLM"
        assert array.dtype == NUMPY[INPUTS[name]["data_type"]], name
        assert array.shape[0] == rows, name
        assert array.ndim == len(INPUTS[name]["dims"]) + 1, name
    assert {name for name, row in INPUTS.items() if not row["optional"]} <= set(arrays)
