"""Read and make arrays of Triton's requests and responses, for the text façades."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import BadRequest

Arrays = dict[str, NDArray[Any]]
Given = Mapping[str, NDArray[Any]]


def refuse(inputs: Given, names: Sequence[str]) -> None:
    """Raise BadRequest if one of `names` has a value."""
    for name in names:
        if name in inputs and inputs[name].size:
            raise BadRequest(f"{name} is not supported by text models; omit it")


def strings(inputs: Given, name: str) -> list[str]:
    """Return the texts of a BYTES input of any shape as a flat list; empty if the input is absent.

    Raises:
        BadRequest: one that is not UTF-8.
    """
    return [decoded(text, name) for text in inputs[name].ravel().tolist()] if name in inputs else []


def decoded(raw: bytes, name: str) -> str:
    """Decode one element of the input `name`.

    Raises:
        BadRequest: it is not UTF-8.
    """
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise BadRequest(f"{name} is not UTF-8 at byte {error.start}; send UTF-8") from error


def padded(rows: Sequence[Sequence[int]], pad: int) -> NDArray[np.int32]:
    """Pad rows to int32 [rows, longest]."""
    longest = max(len(row) for row in rows)
    return np.array([[*row, *[pad] * (longest - len(row))] for row in rows], np.int32)


def lengths_of(rows: Sequence[Sequence[int]]) -> NDArray[np.int32]:
    """Return lengths as int32 [rows, 1]."""
    return np.array([[len(row)] for row in rows], np.int32)


def filled(inputs: Given, name: str, value: int, rows: int) -> NDArray[np.int32]:
    """Return an input, or `value` where it is absent: int32 [rows, 1]."""
    return (
        inputs[name].reshape(rows, 1).astype(np.int32)
        if name in inputs and inputs[name].size
        else np.full((rows, 1), value, np.int32)
    )


def objects(texts: Sequence[str | bytes]) -> NDArray[Any]:
    """Make Triton's strings: an object array [n] of UTF-8 bytes."""
    out = np.empty(len(texts), object)
    out[:] = [text.encode() if isinstance(text, str) else text for text in texts]
    return out
