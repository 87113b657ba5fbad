"""POST /v1/embeddings."""

from __future__ import annotations

from math import ceil

from fastapi import APIRouter, Request, Response

from ..disconnect import cancel_on_disconnect
from ..errors import ApiError
from ..services import ServicesDep
from .embedder import INPUTS, embed
from .responses import body
from .schema import EmbeddingsRequest, check

router = APIRouter()


@router.post("/v1/embeddings")
async def embeddings(form: EmbeddingsRequest, request: Request, services: ServicesDep) -> Response:
    """A vector for each input."""
    pool = services.pool(form.model, "embedding")
    check(form, pool)
    items = form.items
    with services.embeddings.place(pool, ceil(len(items) / INPUTS)):
        work = embed(services.triton, pool, items, request.state.request_id, truncate=form.truncate)
        try:
            vectors = await cancel_on_disconnect(request, work)
        except ApiError as error:
            if error.status == 400 and error.param is None:
                raise ApiError(400, error.message, param="input", code="invalid_value") from error
            raise
    return Response(body(form.model, vectors, form.encoding_format), media_type="application/json")
