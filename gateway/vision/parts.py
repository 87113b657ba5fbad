"""Pictures as parts of a message, as OpenAI's chat has them."""

from __future__ import annotations

from typing import ClassVar, Literal

from ..fields import Fields


class ImageUrl(Fields):
    """Where a picture is. `detail`: our models read pictures in one size, so that all say the same."""

    url: str
    detail: Literal["auto", "low", "high", "original"] | None = None


class ImagePart(Fields):
    """A picture."""

    HARMLESS: ClassVar = frozenset({"prompt_cache_breakpoint"})

    type: Literal["image_url"]
    image_url: ImageUrl
