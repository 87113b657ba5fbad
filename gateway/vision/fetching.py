"""Fetch pictures from URLs, from hosts that the operator has allowed and no others, since a client that could
name any address would reach internal networks.
"""

from __future__ import annotations

import asyncio
import base64
import ssl
from collections.abc import Collection
from functools import cache
from urllib.parse import urlsplit

import httpx

from conch.errors import refused
from conch.pictures import MOST_BYTES

from .parts import REMEDY, check_url

SECONDS = 10.0


async def data_urls(
    urls: Collection[str], hosts: Collection[str], param: str, most: int, proxy: str = ""
) -> list[str]:
    """Return each as a data URL, in order, of at most `most` bytes in total. `hosts` may be fetched from, as
    HOST or HOST:PORT; `proxy` is used, if given.

    Raises:
        ApiError: 400 with `param` for another URL, a picture that does not come, or too many bytes.
    """
    found = list[str]()
    for number, url in enumerate(urls, 1):
        left = most - sum(map(len, found))
        bytes_left = min(MOST_BYTES, left * 3 // 4)
        one = await _data_url(url, hosts, param, f"picture {number}", bytes_left, proxy)
        if len(one) > left:
            raise refused(
                param,
                f"picture {number} exceeds the limit of {most >> 20} MiB for all pictures as data URLs, "
                "counted once for each of n; send fewer or smaller pictures",
            )
        found.append(one)
    return found


@cache
def _trusted() -> ssl.SSLContext:
    """Return httpx's own certificates; reading them for each picture takes 50 ms."""
    return httpx.create_ssl_context(trust_env=False)


async def _data_url(url: str, hosts: Collection[str], param: str, which: str, most: int, proxy: str) -> str:
    """Return a data URL; `most` limits the bytes of a fetched picture."""
    if not allowed(url, hosts):
        check_url(url, param, which)
        return url
    try:
        client = httpx.AsyncClient(verify=_trusted(), timeout=SECONDS, trust_env=False, proxy=proxy or None)
        async with asyncio.timeout(SECONDS), client:
            data = await _fetched(client, url, param, which, most)
    except (TimeoutError, httpx.HTTPError, httpx.InvalidURL, UnicodeError) as error:
        raise refused(param, f"{which} could not be fetched ({type(error).__name__}); {REMEDY}") from error
    return f"data:application/octet-stream;base64,{base64.b64encode(data).decode()}"


def allowed(url: str, hosts: Collection[str]) -> bool:
    """Tell whether a URL may be fetched: http(s) only, no password, no other port than the allowed one."""
    if not url[:8].lower().startswith(("http://", "https://")):
        return False
    try:
        parts = urlsplit(url)
        return parts.username is None and parts.password is None and parts.netloc.lower() in hosts
    except ValueError:
        return False


async def _fetched(client: httpx.AsyncClient, url: str, param: str, which: str, most: int) -> bytes:
    """Return the whole response. Redirects are not followed: they may lead anywhere."""
    found = bytearray()
    async with client.stream("GET", url, follow_redirects=False) as answer:
        if answer.status_code != 200:
            status = answer.status_code
            raise refused(param, f"{which} could not be fetched (its host answered {status}); {REMEDY}")
        async for piece in answer.aiter_bytes():
            found += piece
            if len(found) > most:
                raise refused(
                    param,
                    f"{which} exceeds the {most} bytes that are left for it; send a smaller picture",
                )
    return bytes(found)
