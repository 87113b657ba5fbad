"""Pictures as content parts of a message, as in OpenAI's chat."""

from __future__ import annotations

from typing import ClassVar, Literal

from ..fields import Fields


class ImageUrl(Fields):
    """A picture's URL. `detail` has no effect, because the models read pictures in one size."""

    url: str
    detail: Literal["auto", "low", "high", "original"] | None = None


class ImagePart(Fields):
    """A picture."""

    HARMLESS: ClassVar = frozenset({"prompt_cache_breakpoint"})

    type: Literal["image_url"]
    image_url: ImageUrl
