"""API keys: who may use /v1. Without a key file, or with an empty one, everybody may."""

from __future__ import annotations

import hmac
from pathlib import Path
from typing import Annotated

from fastapi import Depends, Request

from .errors import ApiError
from .services import Services, services


def load_keys(path: Path | None) -> tuple[bytes, ...]:
    """One key a line; blank lines and lines that start with # do not count."""
    if path is None or not path.exists():
        return ()
    lines = (line.strip() for line in path.read_text("utf-8").splitlines())
    return tuple(line.encode() for line in lines if line and not line.startswith("#"))


def allowed(keys: tuple[bytes, ...], authorization: str) -> bool:
    """Whether an Authorization header holds one of the keys; every key is compared, each in constant time."""
    if not keys:
        return True
    scheme, _, given = authorization.partition(" ")
    matches = [hmac.compare_digest(key, given.strip().encode()) for key in keys]
    return scheme.lower() == "bearer" and any(matches)


def require_key(request: Request, tools: Annotated[Services, Depends(services)]) -> None:
    """A dependency of every route that needs a key.

    Raises:
        ApiError: 401 in OpenAI's shape.
    """
    authorization = request.headers.get("authorization", "")
    if not allowed(tools.keys, authorization):
        message = "Incorrect API key provided." if authorization else "No API key provided; send it as: Authorization: Bearer KEY"
        raise ApiError(401, message, code="invalid_api_key")
