"""Multipart bodies of /v1/embeddings: any number of `input` and `file`, and the other fields."""

from __future__ import annotations

from collections.abc import AsyncGenerator, MutableMapping
from typing import Any

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import ValidationError
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import parse_options_header
from starlette.datastructures import UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import ClientDisconnect
from starlette.routing import Match

from conch.errors import invalid
from conch.pictures import Picture

from ..upload import broken, limited
from .schema import MOST_INPUTS, EmbeddingsRequest, Item

MAX_FIELD = 1 << 20  # bytes of a text
OTHERS = 16  # fields that are no inputs
INPUTS = ("input", "file")


class MultipartRoute(APIRoute):
    """Matches requests whose body is a form, and no others."""

    def matches(self, scope: MutableMapping[str, Any]) -> tuple[Match, MutableMapping[str, Any]]:
        kind = next((value for name, value in scope.get("headers", ()) if name == b"content-type"), b"")
        if not kind.lower().startswith(b"multipart/"):
            return Match.NONE, {}
        return super().matches(scope)


async def receive(request: Request, limit: int) -> tuple[EmbeddingsRequest, list[Item]]:
    """Read the fields, and the inputs in order: text fields, and pictures as files.

    Raises:
        ApiError: 400 for a broken or incomplete form, 413 above `limit` bytes.
        RequestValidationError: what the fields say cannot be.
    """
    items: list[Item] = []
    fields: dict[str, Any] = {}
    for name, value in await _parts(request, limit):
        if isinstance(value, UploadFile):
            if name not in INPUTS:
                raise invalid(name[:80], f"{name[:80]} is a file; send pictures in the field file or input")
            items.append(Picture(await value.read()))
        elif name in INPUTS:
            items.append(value)
        elif name in fields:
            raise invalid(name[:80], f"{name[:80]} is sent twice; send it once")
        else:
            fields[name] = value
    # Inputs are checked as those of a JSON body; the text stands for pictures too.
    body = {**fields, "input": [item if isinstance(item, str) else "picture" for item in items]}
    try:
        return EmbeddingsRequest.model_validate(body), items
    except ValidationError as error:
        rows = [{**row, "loc": ("body", *row["loc"])} for row in error.errors()]
        raise RequestValidationError(rows, body=body) from error


async def _parts(request: Request, limit: int) -> list[tuple[str, UploadFile | str]]:
    _, options = parse_options_header(request.headers.get("content-type", ""))
    too_large = f"the body exceeds {limit} bytes; send fewer or smaller pictures at once"
    tail = bytearray()
    try:
        parser = MultiPartParser(
            request.headers,
            _noted(limited(request, limit, "input", too_large), tail),
            max_files=MOST_INPUTS,
            max_fields=MOST_INPUTS + OTHERS,
            max_part_size=MAX_FIELD,
        )
        found = (await parser.parse()).multi_items()
    except (MultiPartException, FormParserError, ClientDisconnect, ValueError) as error:
        message = str(getattr(error, "message", error)) or "connection closed"
        raise broken("input", f"is broken ({message})") from error
    if b"--" + options.get(b"boundary", b"") + b"--" not in tail:
        raise broken("input", "ends before its closing boundary")
    return found


async def _noted(chunks: AsyncGenerator[bytes, None], tail: bytearray) -> AsyncGenerator[bytes, None]:
    """Yield the body; `tail` is its end, longer than any boundary (RFC 2046: 70 characters)."""
    async for chunk in chunks:
        tail += chunk[-200:]
        del tail[:-200]
        yield chunk
