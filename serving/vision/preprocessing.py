"""Preprocess pixels for CLIP and BLIP-2, with the results of transformers' CLIPImageProcessor and
BlipImageProcessor (their Pillow versions).
"""

from __future__ import annotations

from math import floor

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from conch.bundle import PictureFacts

MOST_RESIZED = 16 << 20  # pixels of a whole resized picture; of longer ones the middle alone is made
BICUBIC_REACH = 2  # pixels to each side, of the larger of both pictures


def pixels(picture: Image.Image, facts: PictureFacts) -> NDArray[np.float32]:
    """Return the pixels [3, size, size] of an RGB picture: bicubic resize of the shorter side, centre crop,
    normalized.
    """
    cut = np.asarray(middle(picture, facts), np.float32) / 255
    mean, deviation = (np.array(row, np.float32) for row in (facts.mean, facts.deviation))
    return np.ascontiguousarray(((cut - mean) / deviation).transpose(2, 0, 1))


def middle(picture: Image.Image, facts: PictureFacts) -> Image.Image:
    """Return the central `size` pixels on a side of the resized picture, or all of it if no shorter side is
    given.
    """
    if not facts.resized:
        return picture.resize((facts.size, facts.size), Image.Resampling.BICUBIC)
    width, height = resized(picture.size, facts.resized)
    left, top = (width - facts.size) // 2, (height - facts.size) // 2
    if width * height <= MOST_RESIZED:
        whole = picture.resize((width, height), Image.Resampling.BICUBIC)
        return whole.crop((left, top, left + facts.size, top + facts.size))
    # Of a picture like a thread the whole would be larger than memory. Its middle by itself, across first as
    # Pillow does it, of no more rows than the middle is made of, is the same but for rounding: at most one of
    # 255 steps.
    across, down = picture.width / width, picture.height / height
    begin, end = top * down, (top + facts.size) * down
    margin = int(BICUBIC_REACH * max(1.0, down)) + 2
    first, last = max(0, int(begin) - margin), min(picture.height, int(end) + margin + 1)
    columns = (left * across, 0, (left + facts.size) * across, last - first)
    few = picture.crop((0, first, picture.width, last))
    narrow = few.resize((facts.size, last - first), Image.Resampling.BICUBIC, columns)
    rows = (0, begin - first, facts.size, end - first)
    return narrow.resize((facts.size, facts.size), Image.Resampling.BICUBIC, rows)


def resized(size: tuple[int, int], shorter: int) -> tuple[int, int]:
    """Return width and height with the shorter of them `shorter` long; the other is rounded down."""
    width, height = size
    return (
        (shorter, floor(shorter * height / width))
        if width <= height
        else (floor(shorter * width / height), shorter)
    )
