"""Decode pictures from untrusted clients: an allow-list of formats, a limit of pixels, few at once."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from io import BytesIO
from threading import BoundedSemaphore
from typing import TypeVar

import numpy as np
from PIL import Image

from conch.pictures import MOST_BYTES

from ..errors import BadRequest

T = TypeVar("T")
FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP")
NAMES = "PNG, JPEG, WebP, GIF or BMP"
MOST_PIXELS = 8192 * 8192
MOST_SIDE = 65_535  # pixels; no JPEG has more (ITU-T T.81, B.2.2)
# Decoding holds a picture in memory about twice. Small ones at once as there are CPUs; of large ones one.
LARGE = 16 << 20  # pixels
AT_ONCE, LARGE_AT_ONCE = BoundedSemaphore(max(2, os.cpu_count() or 2)), BoundedSemaphore(1)
ORIENTATION = 0x0112
# What an EXIF orientation asks for (Exif 2.32, 4.6.4 A).
TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
Image.MAX_IMAGE_PIXELS = MOST_PIXELS
# glibc would keep what each thread has freed of a large picture: measured, 16 threads one after the other
# held 8.5 GiB; with a fixed threshold (mallopt(3), M_MMAP_THRESHOLD) 8 of them held 1.05 GiB at most.
ctypes.CDLL(None).mallopt(-3, 1 << 20)


def decoded(data: bytes, make: Callable[[Image.Image], T]) -> T:
    """Call `make` with the first frame in RGB, rotated as EXIF says, on white where it is transparent (as
    transformers' processors do from version 5 on; earlier ones dropped alpha). Few pictures are in memory at
    once, so `make` should return something smaller.

    Raises:
        BadRequest: no picture of FORMATS, a broken one, or one that is too large.
    """
    with ExitStack() as held:
        picture = held.enter_context(opened(data))
        held.enter_context(room(*picture.size))
        try:
            turn = orientation(picture)
            found = on_white(picture)
        except Exception as error:
            raise BadRequest(f"is a damaged {picture.format} picture; send a complete file") from error
        return make(found.transpose(TURNS[turn]) if turn in TURNS else found)


def opened(data: bytes) -> Image.Image:
    """Read a picture's header without decoding it.

    Raises:
        BadRequest: see decoded.
    """
    if len(data) > MOST_BYTES:
        raise BadRequest(
            f"has {len(data)} bytes; a picture may have {MOST_BYTES >> 20} MiB; send a smaller one"
        )
    try:
        return Image.open(BytesIO(data), formats=FORMATS)
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        raise _too_large() from None
    except Exception as error:  # whatever Pillow's plugins say of a stranger's bytes
        raise BadRequest(f"is not a picture that can be read; send {NAMES}") from error


@contextmanager
def room(width: int, height: int) -> Iterator[None]:
    """Reserve memory for a picture; waits until there is some.

    Raises:
        BadRequest: none is ever large enough.
    """
    if width * height > MOST_PIXELS:
        raise _too_large()
    if (side := max(width, height)) > MOST_SIDE:
        raise BadRequest(f"is {side} pixels long; a side may have {MOST_SIDE}; send a smaller picture")
    with LARGE_AT_ONCE if width * height > LARGE else nullcontext(), AT_ONCE:
        yield


def on_white(picture: Image.Image) -> Image.Image:
    """Convert to RGB on a white background."""
    picture = in_eight_bits(picture)
    if "A" not in picture.getbands() and picture.info.get("transparency") is None:
        return picture.convert("RGB")
    white = Image.new("RGBA", picture.size, (255, 255, 255, 255))
    return Image.alpha_composite(white, picture.convert("RGBA")).convert("RGB")


def in_eight_bits(picture: Image.Image) -> Image.Image:
    """Convert 16-bit grey to 8 bits; Pillow would clip it, which turns a scan into a white page."""
    if picture.mode != "I" and not picture.mode.startswith("I;16"):
        return picture
    grey = np.asarray(picture).astype(np.int64).clip(0, 65535)
    found = Image.fromarray((grey / 257).round().astype(np.uint8))
    if (seen_through := picture.info.get("transparency")) is not None:
        found.putalpha(Image.fromarray(np.where(grey == seen_through, 0, 255).astype(np.uint8)))
    return found


def orientation(picture: Image.Image) -> int:
    """Return EXIF's orientation; 1 where it is missing or broken."""
    try:
        return int(picture.getexif().get(ORIENTATION, 1))
    except Exception:  # noqa: BLE001  # as viewers do
        return 1


def _too_large() -> BadRequest:
    return BadRequest(f"has more than {MOST_PIXELS} pixels; send a smaller picture")
