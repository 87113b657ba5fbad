"""GET /console/api/state and /console/api/history: what runs, and its load. POST
/console/api/instances/{index}/restart, for admin keys only.
"""

from __future__ import annotations

import time
from typing import Any

import structlog
from fastapi import APIRouter, Request

from conch.errors import ApiError

from ..audio.languages import NAMES
from ..keys import is_admin
from ..services import Services, ServicesDep
from .history import MINUTES, SECONDS

log = structlog.get_logger()
router = APIRouter(prefix="/console/api", include_in_schema=False)


@router.get("/state")
async def state(request: Request, services: ServicesDep) -> dict[str, Any]:
    """Return models, instances, languages, the upload limit, files and stores, and whether this key may
    restart instances.
    """
    return {
        "time": round(time.time(), 3),
        "models": services.overview.models(),
        "instances": await services.overview.instances(),
        "languages": list(NAMES),
        "max_upload_bytes": services.settings.max_upload_bytes,
        "retrieval": retrieval(services),
        "operate": may_operate(request, services),
    }


def retrieval(services: Services) -> dict[str, Any] | None:
    """Return which models embed files (by default the first of each kind), and which answer questions about
    pictures; None where there are no vector stores.
    """
    if services.retrieval is None:
        return None
    library = services.retrieval.library
    return {
        "embedders": [{"id": name, "pictures": one.pictures} for name, one in library.embedders.items()],
        "answerers": list(services.retrieval.answerers),
        "max_pictures_bytes": services.settings.max_pictures_bytes,
    }


def may_operate(request: Request, services: Services) -> str:
    """Return "allowed" or "denied" for the key of a request; "off" without admin keys in this deployment."""
    if not services.admin_keys:
        return "off"
    return "allowed" if is_admin(request, services) else "denied"


@router.get("/history")
async def history(services: ServicesDep) -> dict[str, Any]:
    """Return points of the last 15 minutes, oldest first."""
    return {"seconds": SECONDS, "minutes": MINUTES, "points": await services.recent()}


@router.post("/instances/{index}/restart", status_code=202)
async def restart(index: int, request: Request, services: ServicesDep) -> dict[str, str]:
    """Drain one instance and restart its server; /state shows the progress.

    Raises:
        ApiError: 403 without an admin key, 404 for an instance that is not planned, 503 if its guard is away.
    """
    allowed = may_operate(request, services)
    if allowed == "off":
        raise ApiError(403, "restarts are disabled; set ADMIN_KEYS_FILE and restart the gateway", code="off")
    if allowed == "denied":
        raise ApiError(403, "this key may not restart instances; send an admin key", code="not_admin")
    if (instance := services.overview.instance(index)) is None:
        known = ", ".join(str(one.index) for one in services.overview.deployment.instances)
        raise ApiError(404, f"instance {index} does not exist; there are: {known}", param="index")
    if not await services.overview.restart(instance):
        raise ApiError(503, f"the guard of {instance.name} does not answer; its log says why", retry_after=2)
    log.info("restart asked for", instance=instance.name, request_id=request.state.request_id)
    return {"instance": instance.name, "status": "restarting"}
