"""Embed pictures, for Triton's `clip_image`: decodes them and calls the encoder."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conch.bundle import PictureFacts

from ..errors import BadRequest
from ..triton.stub import Request, Sender, Utils, arrays_of
from ..triton.threaded import ThreadedEndpoint
from .decoding import decoded
from .preprocessing import pixels

OUTPUTS = ("embedding",)
AT_ONCE = 16  # pictures of one call of the encoder: 9 MiB of pixels of 224 on a side
Encode = Callable[[NDArray[np.float32]], NDArray[np.float32]]


def files(inputs: Mapping[str, NDArray[Any]]) -> list[bytes]:
    """Return the encoded pictures of one request: object [rows, 1] of files, or uint8 [rows, bytes].

    Raises:
        BadRequest: neither of the two inputs, or both.
    """
    if ("image" in inputs) == ("image_bytes" in inputs):
        raise BadRequest("send either image or image_bytes")
    if "image" in inputs:
        return [bytes(data) for data in inputs["image"].ravel()]
    return [row.tobytes() for row in inputs["image_bytes"]]


def embed(inputs: Mapping[str, NDArray[Any]], facts: PictureFacts, encode: Encode) -> NDArray[np.float32]:
    """Return vectors [rows, dimensions] of one request; `encode` maps pixels float32 [rows, 3, size, size] to
    vectors.

    Raises:
        BadRequest: see `files`, or one of the pictures cannot be read.
    """
    given = files(inputs)
    rows = np.empty((len(given), 3, facts.size, facts.size), np.float32)
    for number, data in enumerate(given):
        try:
            rows[number] = decoded(data, partial(pixels, facts=facts))
        except BadRequest as error:
            raise BadRequest(f"image {number} {error}") from error
    return np.concatenate([encode(rows[at : at + AT_ONCE]) for at in range(0, len(rows), AT_ONCE)])


class PictureEmbeddingEndpoint(ThreadedEndpoint):
    """`encoder` is the Triton model that maps pixels to vectors."""

    def __init__(self, facts: PictureFacts, encoder: str, utils: Utils) -> None:
        super().__init__(utils)
        self.facts, self.encoder = facts, encoder

    def answer(self, request: Request, sender: Sender) -> None:
        found = embed(
            arrays_of(request.inputs()), self.facts, lambda rows: self._encoded(request.request_id(), rows)
        )
        self.calls.answer(sender, {"embedding": found}, set(OUTPUTS))

    def _encoded(self, request_id: str, rows: NDArray[np.float32]) -> NDArray[np.float32]:
        given = {"pixel_values": rows.astype(self.facts.pixels, copy=False)}
        return self.calls.ask(self.encoder, given, ["embedding"], request_id)["embedding"]
