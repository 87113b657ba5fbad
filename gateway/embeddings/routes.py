"""POST /v1/embeddings."""

from __future__ import annotations

from collections.abc import Sequence

from fastapi import APIRouter, Request, Response

from conch.errors import ApiError, invalid
from conch.pictures import Picture

from ..disconnect import cancel_on_disconnect
from ..services import Services, ServicesDep
from .embedder import embed, places
from .form import MultipartRoute, receive
from .responses import body
from .schema import EmbeddingsRequest, Item, check

router = APIRouter()


async def uploaded(request: Request, services: ServicesDep) -> Response:
    """Embed each text and each picture of a form."""
    form, items = await receive(request, services.settings.max_pictures_bytes)
    return await _answer(form, items, request, services)


router.add_api_route(
    "/v1/embeddings", uploaded, methods=["POST"], route_class_override=MultipartRoute, include_in_schema=False
)


@router.post("/v1/embeddings")
async def embeddings(form: EmbeddingsRequest, request: Request, services: ServicesDep) -> Response:
    """Embed each input."""
    return await _answer(form, form.items, request, services)


async def _answer(
    form: EmbeddingsRequest, items: Sequence[Item], request: Request, services: Services
) -> Response:
    pool = services.pool(form.model, "embedding")
    request.state.model = pool.model_id
    check(form, items, pool)
    with services.embeddings.place(pool, places(items, pool)):
        cut = (
            services.settings.embeddings_truncate if form.truncate is None else form.truncate in (True, "END")
        )
        work = embed(services.triton, pool, items, request.state.request_id, truncate=cut)
        try:
            vectors = await cancel_on_disconnect(request, work)
        except ApiError as error:
            if error.status == 400 and error.param is None:
                raise invalid("input", error.message) from error
            raise
    services.metrics.text_usage(pool.model_id, vectors.tokens)
    services.metrics.pictures.labels(pool.model_id).inc(sum(isinstance(item, Picture) for item in items))
    return Response(body(form.model, vectors, form.encoding_format), media_type="application/json")
