"""POST /v1/realtime/client_secrets: a key for a browser, which allows live sessions for some minutes and
nothing else. It contains its session's configuration and is signed, so that every gateway of a deployment
accepts it.
"""

from __future__ import annotations

import json
import time
import uuid
from typing import Any, Literal

from fastapi import APIRouter, Depends
from pydantic import Field

from conch.errors import invalid

from ..fields import Fields
from ..keys import issue, require_key
from ..services import ServicesDep
from .session import Session

router = APIRouter()


class ExpiresAfter(Fields):
    """Lifetime of a secret, with OpenAI's limits."""

    anchor: Literal["created_at"] = "created_at"
    seconds: int = Field(600, ge=10, le=7200)


class SecretRequest(Fields):
    """The body."""

    expires_after: ExpiresAfter = ExpiresAfter()
    session: dict[str, Any] = Field(default_factory=dict)


@router.post("/v1/realtime/client_secrets", dependencies=[Depends(require_key)])
async def client_secrets(form: SecretRequest, services: ServicesDep) -> dict[str, Any]:
    """Return a client secret, and the session that it opens."""
    session, refused = Session().changed(form.session)
    if refused:
        raise refused[0]
    if model := session.audio.input.transcription.model:
        services.pool(model, "transcription")
    expires = int(time.time()) + form.expires_after.seconds
    described = session.model_dump(mode="json")
    names = {"id": f"sess_{uuid.uuid4().hex[:20]}", "object": "realtime.transcription_session"}
    return {
        "value": issue(services, json.dumps({"expires": expires, "session": described})),
        "expires_at": expires,
        "session": {**names, "expires_at": 0, **described},
    }


def session_of(content: str | None) -> Session:
    """Return the session in a client secret, or the default one.

    Raises:
        ApiError: 400: it was made by another version.
    """
    found, refused = Session().changed(json.loads(content)["session"]) if content else (Session(), [])
    if refused:
        raise invalid(None, "the client secret is of another version; ask for a new one")
    return found
