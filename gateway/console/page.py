"""The console's files: / and /console/NAME. They contain no data, so they need no key; the data that they
load needs one.
"""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path

from fastapi import APIRouter, Request, Response

from conch.errors import ApiError

FOLDER = Path(__file__).parent / "static"
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".flac": "audio/flac",
}
# Everything comes from here: no inline script or style, no other origin, and no strings made into markup.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; media-src blob:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "Permissions-Policy": "microphone=(self), camera=(), geolocation=()",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-cache",  # asked for again each time; the ETag makes that short
}
router = APIRouter(include_in_schema=False)


FILES = {path.name: path.read_bytes() for path in FOLDER.iterdir() if path.suffix in TYPES}
TAGS = {name: f'"{sha256(body).hexdigest()[:16]}"' for name, body in FILES.items()}


@router.api_route("/", methods=["GET", "HEAD"])
async def index(request: Request) -> Response:
    """Return the page."""
    return _answer(request, "index.html")


@router.api_route("/console/{name}", methods=["GET", "HEAD"])
async def file(name: str, request: Request) -> Response:
    """Return a file of the page."""
    if name not in FILES:
        raise ApiError(404, f"the console has no file {name[:80]!r}; it is at /", code="not_found")
    return _answer(request, name)


def _answer(request: Request, name: str) -> Response:
    headers = {**HEADERS, "ETag": TAGS[name]}
    # nginx, which compresses, makes tags weak.
    if request.headers.get("if-none-match", "").removeprefix("W/") == TAGS[name]:
        return Response(status_code=304, headers=headers)
    return Response(FILES[name], media_type=TYPES[Path(name).suffix], headers=headers)
