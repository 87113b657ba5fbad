"""Pictures among the inputs of embeddings: data URLs, and files of a form."""

from __future__ import annotations

import base64
import binascii
import re
from dataclasses import dataclass

from ..text.schema import refused

HEAD = re.compile(r"data:[^,]{0,200};base64,", re.IGNORECASE)
LONGEST_HEAD = 220
REMEDY = "send the picture itself as data:image/png;base64,…"


@dataclass(frozen=True)
class Picture:
    """An encoded picture: bytes, or base64 text that nobody has looked at yet."""

    content: bytes | str

    def __len__(self) -> int:
        return len(self.content)

    @property
    def data(self) -> bytes:
        """Its bytes. Megabytes take some time: not for the event loop.

        Raises:
            ValueError: it is not base64.
        """
        if isinstance(self.content, bytes):
            return self.content
        try:
            return base64.b64decode(self.content, validate=True)
        except (binascii.Error, ValueError) as error:
            raise ValueError("its data URL is not valid base64") from error


def of_url(url: str, number: int) -> Picture:
    """The picture of a data URL (RFC 2397).

    Raises:
        ApiError: 400 for any other URL. What has to be fetched would let a caller reach inside our network.
    """
    if url[:8].lower().startswith(("http:", "https:")):
        raise refused("input", f"[{number}] is a URL that would have to be fetched, which is off; {REMEDY}")
    if not (head := HEAD.match(url, 0, LONGEST_HEAD)):
        raise refused("input", f"[{number}] has a URL that is not a data URL in base64; {REMEDY}")
    return Picture(url[head.end() :])
