"""Pictures in requests: data URLs, and files of a form."""

from __future__ import annotations

import re

from conch.errors import refused
from conch.pictures import Picture

HEAD = re.compile(r"data:[^,]{0,200};base64,", re.IGNORECASE)
LONGEST_HEAD = 220
REMEDY = "send the picture itself as data:image/png;base64,…"


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
