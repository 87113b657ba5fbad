"""API keys: which clients may use /v1. Without a key file, or with an empty one, all may. Admin keys, which
are API keys too, may restart instances; without one, nobody may.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import time

from fastapi.requests import HTTPConnection

from conch.errors import ApiError
from conch.pictures import from_base64

from .services import Services, ServicesDep

PROTOCOL = "openai-insecure-api-key."
SECRET = "ek_"  # noqa: S105  # how OpenAI's client secrets begin
LIVE = "/v1/realtime"  # all that they open


def allowed(keys: tuple[bytes, ...], authorization: str) -> bool:
    """Tell whether an Authorization header is "Bearer KEY" with one of the keys; every key is compared, each
    in constant time.

    No other spelling is accepted: nginx counts requests by this header, and a second spelling would get a
    second budget.
    """
    matches = [
        hmac.compare_digest(b"Bearer " + key, authorization.encode("utf-8", "surrogateescape"))
        for key in keys
    ]
    return any(matches) or not keys


def presented(connection: HTTPConnection) -> str:
    """Return the Authorization header. A web page cannot send one with a WebSocket: there the key is among
    the subprotocols, as OpenAI's own browser client sends it
    (https://platform.openai.com/docs/guides/realtime-websocket).
    """
    offered = connection.headers.get("sec-websocket-protocol", "").split(",")
    keys = [name.strip().removeprefix(PROTOCOL) for name in offered if name.strip().startswith(PROTOCOL)]
    return connection.headers.get("authorization") or (f"Bearer {keys[0]}" if keys else "")


def issue(services: Services, content: str) -> str:
    """Make a client secret that contains a text, signed with the deployment's keys."""
    body = base64.urlsafe_b64encode(content.encode()).decode().rstrip("=")
    return f"{SECRET}{body}.{_signature(services, body)}"


def carried(connection: HTTPConnection, services: Services) -> str | None:
    """Return the text of a client secret that is valid and allows this path; None without one."""
    body, _, signature = presented(connection).removeprefix("Bearer ").removeprefix(SECRET).partition(".")
    path = connection.scope["path"]
    if path == "/auth":
        path = connection.headers.get("x-conch-uri", "").partition("?")[0]
    if path != LIVE or not hmac.compare_digest(signature.encode(), _signature(services, body).encode()):
        return None
    content = from_base64(body).decode()
    return content if json.loads(content)["expires"] > time.time() else None


def _signature(services: Services, body: str) -> str:
    key = hashlib.sha256(b"conch client secrets\n" + b"\n".join(services.keys)).digest()
    return hmac.new(key, body.encode(), hashlib.sha256).hexdigest()


async def require_key(connection: HTTPConnection, services: ServicesDep) -> None:
    """Check the key of a request or a WebSocket, as a dependency of every route that needs one. It is async
    because FastAPI runs other functions in a thread, which takes longer than this.

    Raises:
        ApiError: 401 in OpenAI's shape.
    """
    authorization = presented(connection)
    if authorization.startswith(f"Bearer {SECRET}") and carried(connection, services):
        return
    if not allowed(services.keys and services.keys + services.admin_keys, authorization):
        message = (
            "Incorrect API key provided."
            if authorization
            else "No API key provided; send it as: Authorization: Bearer KEY"
        )
        raise ApiError(401, message, code="invalid_api_key")


def is_admin(connection: HTTPConnection, services: Services) -> bool:
    """Tell whether a request has an admin key."""
    return bool(services.admin_keys) and allowed(
        services.admin_keys, connection.headers.get("authorization", "")
    )
