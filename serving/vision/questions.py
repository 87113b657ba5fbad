"""Turn pictures that accompany a question, in any form, into the pixels that the model reads."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from hashlib import blake2b
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from conch.bundle import PictureFacts
from conch.pictures import MOST_PICTURES, from_base64

from ..errors import BadRequest
from ..text.pictures import INPUTS
from .decoding import MOST_PIXELS, decoded, opened, room
from .preprocessing import pixels

Pixels = NDArray[np.float16]
MOST_TOGETHER = 4 * MOST_PIXELS  # of one request: decoding takes seconds
Given = Mapping[str, NDArray[Any]]


def pictures_of(inputs: Given, facts: PictureFacts, most: int = MOST_PICTURES) -> Pixels | None:
    """Return float16 [rows, n, 3, size, size] of one request, n at most `most`; None without pictures.

    Raises:
        BadRequest: of several kinds at once, too many, or one that cannot be read.
    """
    given = [name for name in INPUTS if name in inputs and inputs[name].size]
    if not given:
        return None
    if len(given) > 1:
        raise BadRequest(f"{' and '.join(given)} cannot be combined; omit one")
    (name,) = given
    array = inputs[name]
    if (pictures := array.shape[1]) > most:
        raise BadRequest(f"{name} has {pictures} pictures; send {most} at most")
    if name == "image_input":
        return _ready(array, facts)
    if name == "image_bytes_input":
        return _of_arrays(array, facts)
    made = np.empty((*array.shape, 3, facts.size, facts.size), np.float16)
    together = 0
    for at, one in np.ndenumerate(array):
        try:
            data = from_url(bytes(one))
            with opened(data) as picture:
                together += picture.width * picture.height
            if together > MOST_TOGETHER:
                raise BadRequest(
                    f"exceeds the limit of {MOST_TOGETHER} pixels for all pictures; send fewer or smaller "
                    "pictures"
                )
            made[at] = decoded(data, partial(pixels, facts=facts))
        except BadRequest as error:
            raise BadRequest(f"{name}: picture {at[1] + 1} {error}") from error
    return made


def keys_of(pixels: Pixels, own: NDArray[np.uint64] | None = None) -> NDArray[np.uint64]:
    """Return uint64 [rows, n], never 0, that distinguish pictures where an engine shares cached blocks. Each
    is a hash (BLAKE2b, RFC 7693, of 8 bytes) of the pixels and of the caller's own id [rows, 1], if there is
    one, so that different pictures never share.
    """
    salts = np.zeros(len(pixels), np.uint64) if own is None else own.reshape(len(pixels), -1)[:, 0]
    keys = [[_key(one, salt.item()) for one in row] for row, salt in zip(pixels, salts, strict=True)]
    return np.array(keys, np.uint64)


def _key(pixels: NDArray[np.float16], salt: int) -> int:
    made = blake2b(np.ascontiguousarray(pixels).data, digest_size=8, salt=salt.to_bytes(8, "little"))
    return int.from_bytes(made.digest(), "little") or 1


def _ready(array: NDArray[Any], facts: PictureFacts) -> Pixels:
    """Preprocess pixels as transformers' processor of the model does."""
    if array.shape[2:] != (3, facts.size, facts.size):
        raise BadRequest(
            f"image_input is {list(array.shape)}; this model reads [rows, pictures, 3, {facts.size}, "
            f"{facts.size}]"
        )
    if not np.isfinite(array).all():
        raise BadRequest("image_input has NaN or infinite values; send finite ones")
    return array.astype(np.float16)


def _of_arrays(array: NDArray[Any], facts: PictureFacts) -> Pixels:
    """Return decoded pictures in RGB, uint8."""
    if array.shape[-1] != 3:
        raise BadRequest(
            f"image_bytes_input is {list(array.shape)}; send [rows, pictures, height, width, 3], decoded to "
            "RGB"
        )
    height, width = array.shape[2:4]
    made = np.empty((*array.shape[:2], 3, facts.size, facts.size), np.float16)
    try:
        for at in np.ndindex(*array.shape[:2]):
            with room(width, height):
                made[at] = pixels(Image.fromarray(np.ascontiguousarray(array[at])), facts)
    except BadRequest as error:
        raise BadRequest(f"image_bytes_input: a picture {error}") from error
    return made


def from_url(url: bytes) -> bytes:
    """Return the bytes of a data URL (RFC 2397).

    Raises:
        BadRequest: another URL, or one whose base64 is broken.
    """
    head, comma, body = url.partition(b",")
    if not head.lower().startswith(b"data:"):
        raise BadRequest("is not a data URL; other URLs are not fetched; send data:image/png;base64,…")
    if not comma or not head.lower().endswith(b";base64"):
        raise BadRequest("is a data URL without base64; send data:image/png;base64,…")
    try:
        return from_base64(body)
    except ValueError as error:
        raise BadRequest("is a data URL with invalid base64; send it complete") from error
