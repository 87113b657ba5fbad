"""Pictures as content parts of a message, as in OpenAI's chat, and their data URLs."""

from __future__ import annotations

import re
from typing import ClassVar, Literal

from conch.errors import refused
from conch.pictures import Picture

from ..fields import Fields

HEAD = re.compile(r"data:[^,]{0,200};base64,", re.IGNORECASE)
LONGEST_HEAD = 220
REMEDY = "send the picture itself as data:image/png;base64,…"


class ImageUrl(Fields):
    """A picture's URL. `detail` has no effect, because the models read pictures in one size."""

    url: str
    detail: Literal["auto", "low", "high", "original"] | None = None


class ImagePart(Fields):
    """A picture."""

    HARMLESS: ClassVar = frozenset({"prompt_cache_breakpoint"})

    type: Literal["image_url"]
    image_url: ImageUrl


def of_url(url: str, param: str, which: str) -> Picture:
    """Decode the picture of a data URL (RFC 2397); `which` is its number in the field `param`, for messages.

    Raises:
        ApiError: 400 for any other URL. What has to be fetched would let a caller reach inside our network.
    """
    return Picture(url[check_url(url, param, which) :])


def check_url(url: str, param: str, which: str) -> int:
    """Return where the base64 of a data URL starts.

    Raises:
        ApiError: see of_url.
    """
    if url[:8].lower().startswith(("http:", "https:")):
        raise refused(param, f"{which} is a remote URL, which this server does not fetch; {REMEDY}")
    if not url.isascii() or not (head := HEAD.match(url, 0, LONGEST_HEAD)):
        raise refused(param, f"{which} is not a base64 data URL; {REMEDY}")
    return head.end()
