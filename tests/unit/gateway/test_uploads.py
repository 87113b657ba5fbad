"""Names of files, as clients of every kind write them."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from starlette.requests import Request

from gateway.upload import Upload, receive


def received(disposition: bytes, media_type: bytes = b"text/plain") -> Upload:
    """What becomes of a form with one file."""
    head = b'Content-Disposition: form-data; name="file"; ' + disposition
    body = b"--x\r\n" + head + b"\r\nContent-Type: " + media_type + b"\r\n\r\nwords\r\n--x--\r\n"

    async def messages() -> dict[str, Any]:
        return {"type": "http.request", "body": body}

    async def form() -> Upload:
        headers = [(b"content-type", b"multipart/form-data; boundary=x")]
        async with receive(Request({"type": "http", "headers": headers}, messages), 1000) as upload:
            return upload

    return asyncio.run(form())


@pytest.mark.parametrize(
    ("disposition", "name"),
    [
        (b'filename="a.txt"', "a.txt"),
        (b"filename=\"a.txt\"; filename*=UTF-8'de'K%C3%BCche.txt", "Küche.txt"),
        (b'filename="=?utf-8?B?S8O8Y2hlLnR4dA==?="', "Küche.txt"),
        (b'filename="=?utf-8?B?abcde?="', "=?utf-8?B?abcde?="),
        (b"filename=\"a.txt\"; filename*=idna''x..y", "a.txt"),
        (b"filename=\"a.txt\"; filename*=nothing''x", "a.txt"),
        (b"filename*=utf-7''%2B2AA-.txt", "?.txt"),
        (b"filename*=unicode_escape''%5Cud800.txt", "?.txt"),
        (b'filename="C:\\\\folder\\\\a.txt"', "a.txt"),
    ],
)
def test_names(disposition: bytes, name: str) -> None:
    upload = received(disposition)
    assert upload.filename == name
    json.dumps(upload.filename, ensure_ascii=False).encode()


def test_a_media_type_is_an_argument_of_a_command() -> None:
    assert received(b'filename="a"', b"text/pl\0ain").media_type == "text/plain"
