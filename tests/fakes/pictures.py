"""Pictures of noise, headers that lie, and files with bytes changed."""

from __future__ import annotations

import base64
import struct
import zlib
from collections.abc import Iterator
from io import BytesIO
from typing import Any

import numpy as np
from PIL import Image


def noise(width: int, height: int, mode: str = "RGB", seed: int = 0) -> Image.Image:
    """Of any mode that Pillow can make from RGBA."""
    draw = np.random.default_rng(seed).integers(0, 256, (height, width, 4), np.uint8)
    return Image.fromarray(draw, "RGBA").convert(mode)


def saved(picture: Image.Image, kind: str, **options: Any) -> bytes:
    file = BytesIO()
    picture.save(file, kind, **options)
    return file.getvalue()


def part(data: bytes, kind: str = "png") -> dict[str, Any]:
    """A picture as a part of a message or of an embedding's input."""
    url = f"data:image/{kind};base64,{base64.b64encode(data).decode()}"
    return {"type": "image_url", "image_url": {"url": url}}


def png(width: int, height: int, body: bytes = b"", depth: int = 8) -> bytes:
    """A PNG that claims these sizes."""
    header = struct.pack(">IIBBBBB", width, height, depth, 2, 0, 0, 0)
    chunks = [(b"IHDR", header), (b"IDAT", zlib.compress(body)), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in chunks
    )


def broken(each: int = 60) -> Iterator[bytes]:
    """Files cut off, and with bytes turned, at random places."""
    draw = np.random.default_rng(4)
    for kind in ("PNG", "JPEG", "WEBP", "GIF", "BMP"):
        whole = saved(noise(40, 30, "P" if kind == "GIF" else "RGB"), kind)
        for _ in range(each):
            data = bytearray(whole[: draw.integers(1, len(whole) + 1)])
            for at in draw.integers(0, len(data), draw.integers(0, 5)):
                data[at] = draw.integers(0, 256)
            yield bytes(data)
