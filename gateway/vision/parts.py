"""Pictures as parts of a message, as OpenAI's chat has them."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict


class ImageUrl(BaseModel):
    """Where a picture is. `detail`: our models read pictures in one size, so that all say the same."""

    model_config = ConfigDict(extra="forbid")

    url: str
    detail: Literal["auto", "low", "high"] | None = None


class ImagePart(BaseModel):
    """A picture."""

    model_config = ConfigDict(extra="forbid")

    type: Literal["image_url"]
    image_url: ImageUrl
