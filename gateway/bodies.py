"""Limit the bytes of bodies that one gateway reads into memory at once."""

from __future__ import annotations

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from conch.errors import ApiError

from .errors import error_response

# A chat whose pictures have 16 MiB as data URLs holds 64 MiB while it is read: bytes, text, its parts.
MOST = 384 << 20
UNKNOWN = 16 << 20  # what a body of undeclared length counts; nginx declares the length of all
RETRY = 2  # seconds
# Routes whose multipart forms go to disk; elsewhere a form is read like anything else, and refused.
FORMS = {"/v1/audio/transcriptions", "/v1/audio/translations", "/v1/embeddings", "/v1/files"}


class Bodies:
    """ASGI middleware: a request whose body does not fit together with those in progress is refused with 503
    and Retry-After before any of it is read. Multipart forms that go to disk are not counted; a body larger
    than `most` is read only when there is no other.
    """

    def __init__(self, app: ASGIApp, most: int = MOST) -> None:
        self.app, self.most, self.held = app, most, 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        size = min(_declared(scope), self.most) if scope["type"] == "http" else 0
        encoding = Headers(scope=scope).get("content-encoding", "identity") if scope["type"] == "http" else ""
        refused = None
        if size and encoding.strip().lower() not in ("", "identity"):
            message = f"a body with Content-Encoding: {encoding[:40]} is not supported; send it uncompressed"
            refused = ApiError(415, message, code="unsupported_encoding")
        elif size and self.held + size > self.most:
            held = f"requests hold {self.held >> 20} of {self.most >> 20} MiB"
            message = f"at capacity: {held}; retry in {RETRY} s"
            refused = ApiError(503, message, code="overloaded", retry_after=RETRY)
        if refused:
            await error_response(refused)(scope, receive, send)
            return
        self.held += size
        try:
            await self.app(scope, receive, send)
        finally:
            self.held -= size


def _declared(scope: Scope) -> int:
    """Return the bytes of a body that is read into memory."""
    headers = Headers(scope=scope)
    if scope["path"] in FORMS and headers.get("content-type", "").lower().startswith("multipart/form-data"):
        return 0
    length = headers.get("content-length", "")
    if length.isdecimal():
        return int(length)
    return UNKNOWN if "transfer-encoding" in headers else 0
