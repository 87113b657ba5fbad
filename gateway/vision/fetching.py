"""Pictures behind URLs, from hosts that the operator has named; from no other, since whoever may name any
address reaches inside our network.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Collection
from urllib.parse import urlsplit

import httpx

from ..errors import ApiError, refused
from .urls import check_url

MOST_BYTES = 20 << 20  # of one picture (serving/vision/decoding.py)
SECONDS = 10.0


async def data_urls(urls: Collection[str], hosts: Collection[str], param: str) -> list[str]:
    """Each as a data URL, in order. `hosts`: those that may be asked, as HOST or HOST:PORT.

    Raises:
        ApiError: 400 with `param` for another URL, or a picture that does not come.
    """
    return [await _data_url(url, hosts, param, f"picture {number}") for number, url in enumerate(urls, 1)]


async def _data_url(url: str, hosts: Collection[str], param: str, which: str) -> str:
    if not allowed(url, hosts):
        check_url(url, param, which)
        return url
    try:
        async with asyncio.timeout(SECONDS), httpx.AsyncClient(timeout=SECONDS) as client:
            data = await _fetched(client, url, param, which)
    except (TimeoutError, httpx.HTTPError) as error:
        raise refused(
            param, f"{which} could not be fetched ({type(error).__name__}); send it itself"
        ) from error
    return f"data:application/octet-stream;base64,{base64.b64encode(data).decode()}"


def allowed(url: str, hosts: Collection[str]) -> bool:
    """Whether a URL may be fetched: no other scheme, no password, no port but the one named."""
    if not url[:8].lower().startswith(("http://", "https://")):
        return False
    try:
        parts = urlsplit(url)
        return parts.username is None and parts.password is None and parts.netloc.lower() in hosts
    except ValueError:
        return False


async def _fetched(client: httpx.AsyncClient, url: str, param: str, which: str) -> bytes:
    """The whole of it. Redirects are not followed: they may lead anywhere."""
    found = bytearray()
    async with client.stream("GET", url, follow_redirects=False) as answer:
        if answer.status_code != 200:
            raise _not_there(param, which, answer.status_code)
        async for piece in answer.aiter_bytes():
            found += piece
            if len(found) > MOST_BYTES:
                raise refused(param, f"{which} has more than {MOST_BYTES >> 20} MiB; send a smaller one")
    return bytes(found)


def _not_there(param: str, which: str, status: int) -> ApiError:
    return refused(param, f"{which} could not be fetched: its host answered {status}; send it itself")
