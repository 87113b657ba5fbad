"""Limits on number and size of pictures in one request, which the gateway, the guard and the façades all
enforce, and decoding of base64 as clients write it.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass
from urllib.parse import unquote_to_bytes

MOST_PICTURES = 32  # of one text; in the gateway of one conversation, times its texts (n)
MOST_BYTES = 20 << 20  # of one picture
MOST_URL_BYTES = 64 << 20  # of the pictures of one request as data URLs, together

_STANDARD = bytes.maketrans(b"-_", b"+/")


def from_base64(text: str | bytes) -> bytes:
    """Decode base64 in either alphabet (RFC 4648, 4 and 5), with line breaks (RFC 2045, 6.8), without
    padding, or percent-encoded as in a URL (RFC 2397).

    Raises:
        ValueError: it is something else.
    """
    raw = text.encode("ascii") if isinstance(text, str) else text
    raw = unquote_to_bytes(raw) if b"%" in raw else raw
    plain = raw.translate(_STANDARD, b" \t\r\n\f").rstrip(b"=")
    return base64.b64decode(plain + b"=" * (-len(plain) % 4), validate=True)


@dataclass(frozen=True)
class Picture:
    """An encoded picture: bytes, or base64 text that was not decoded yet."""

    content: bytes | str

    def __len__(self) -> int:
        return len(self.content)

    @property
    def data(self) -> bytes:
        """Return its bytes. Decoding megabytes takes time, so do not call this on the event loop.

        Raises:
            ValueError: it is not base64.
        """
        if isinstance(self.content, bytes):
            return self.content
        try:
            return from_base64(self.content)
        except ValueError as error:
            raise ValueError("its data URL is not valid base64") from error
