"""Read and check arrays that come from outside."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

T = TypeVar("T", int, float, bool)


def finite(array: NDArray[Any]) -> bool:
    """Tell whether an array has neither NaN nor infinity. float16 is checked by its bits (an exponent of
    ones), which is sixty times as fast.
    """
    if array.dtype != np.float16:
        return bool(np.isfinite(array).all())
    exponents = np.ascontiguousarray(array).view(np.uint16) & 0x7C00
    return not (exponents == 0x7C00).any()


def scalar(inputs: Mapping[str, NDArray[Any]], name: str, default: T) -> T:
    """Return the first element of an optional input of any shape; Triton has checked its dtype."""
    return type(default)(inputs[name].ravel()[0]) if name in inputs and inputs[name].size else default


def text_of(inputs: Mapping[str, NDArray[Any]], name: str) -> str:
    """Return the first element of an optional BYTES input; empty if it is absent."""
    value = inputs[name].ravel()[0] if name in inputs and inputs[name].size else b""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
