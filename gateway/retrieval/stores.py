"""/v1/vector_stores: stores and searches."""

from __future__ import annotations

import time
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request

from conch.errors import ApiError, refused
from retrieval.documents import Page, Record
from retrieval.library import (
    ATTACHMENT,
    DELETING,
    LIVE,
    STORE,
    Library,
    deleting,
    missing,
    model_of,
    new_id,
    with_body,
)
from retrieval.search import StoreSearch, search

from ..disconnect import cancel_on_disconnect
from ..metrics import GatewayMetrics
from ..services import ServicesDep
from . import responses
from .answerer import asked
from .lists import Listing, RetrievalDep, files_of, idempotency, page_of
from .schema import CreateStore, SearchRequest, StoreFields, stored_strategy
from .service import Retrieval

router = APIRouter()


async def _shown(library: Library, record: Record) -> dict[str, Any]:
    return responses.store_object(record, await library.documents.sums(ATTACHMENT, {"parent": record.id}))


def _usual(library: Library) -> list[str]:
    """Return the first model for texts, and the first that reads pictures."""
    pictures = [model for model, embedder in library.embedders.items() if embedder.pictures]
    return [*[model for model in library.embedders if model not in pictures][:1], *pictures[:1]]


@router.post("/v1/vector_stores")
async def create_store(form: CreateStore, request: Request, retrieval: RetrievalDep) -> dict[str, Any]:
    """Create a vector store, with or without files."""
    library = retrieval.library
    models = form.embedding_models or _usual(library)
    for model in models:
        if model not in library.embedders:
            served = ", ".join(library.embedders)
            raise refused("embedding_models", f"{model[:80]!r} is not served here; these are: {served}")
    files = await files_of(library, dict.fromkeys(form.file_ids), "file_ids")
    now = time.time_ns()
    body = {
        "name": form.name or "",
        "description": form.description,
        "metadata": form.metadata or {},
        "spaces": library.spaces(models),
        "next": [],
        "active": now // 10**9,
    }
    name = new_id("vs_", idempotency(request, STORE))
    store = Record(STORE, name, LIVE, now, body=body)
    if not await library.documents.insert(store):
        there = (await library.documents.get(STORE, [name])).get(name)
        if there is None or there.status == DELETING:
            problem = "this Idempotency-Key made a vector store that was deleted; choose a new one"
            raise ApiError(409, problem, param="Idempotency-Key", code="conflict")
        store = there
    fields = {"attributes": {}, "strategy": stored_strategy(form.chunking_strategy)}
    for file in files:
        await library.attach(store, file, fields)
    retrieval.worker.wake()
    return await _shown(library, store)


@router.get("/v1/vector_stores")
async def list_stores(retrieval: RetrievalDep, wanted: Annotated[Listing, Query()]) -> dict[str, Any]:
    """List all vector stores."""
    page = Page(STORE, {}, [LIVE], wanted.limit, wanted.order == "desc")
    records, more = await page_of(retrieval.library, page, (wanted.after, wanted.before))
    return responses.listed([await _shown(retrieval.library, record) for record in records], more)


@router.get("/v1/vector_stores/{store_id}")
async def get_store(store_id: str, retrieval: RetrievalDep) -> dict[str, Any]:
    """Get one vector store."""
    return await _shown(retrieval.library, await retrieval.library.store_of(store_id))


@router.post("/v1/vector_stores/{store_id}")
async def modify_store(store_id: str, form: StoreFields, retrieval: RetrievalDep) -> dict[str, Any]:
    """Change its name or metadata."""

    def edit(record: Record) -> Record | None:
        given = {name: getattr(form, name) for name in ("name", "metadata") if name in form.model_fields_set}
        return with_body(record, **given) if record.status == LIVE else None

    await retrieval.library.store_of(store_id)
    changed = await retrieval.library.change(STORE, store_id, edit)
    if not changed:
        raise missing("vector store", store_id, "vector_store_id")
    return await _shown(retrieval.library, changed)


@router.delete("/v1/vector_stores/{store_id}")
async def delete_store(store_id: str, retrieval: RetrievalDep) -> dict[str, Any]:
    """Delete a store; its files stay."""
    await retrieval.library.store_of(store_id)
    await retrieval.library.change(STORE, store_id, deleting)
    retrieval.worker.wake()
    return responses.deleted(store_id, "vector_store.deleted")


@router.post("/v1/vector_stores/{store_id}/search")
async def search_store(
    store_id: str, form: SearchRequest, request: Request, services: ServicesDep, retrieval: RetrievalDep
) -> dict[str, Any]:
    """Return the chunks and pictures that match best."""
    store = await retrieval.library.store_of(store_id)
    for model in map(model_of, store.body["spaces"]):
        if model not in retrieval.library.embedders:
            message = (
                f"model {model!r}, with which this store was embedded, is not served here; start it, or "
                "embed the store with another (docs/retrieval.md)"
            )
            raise ApiError(400, message, code="unsupported_model")
    try:
        work = _searched(retrieval, store, form, services.metrics, request.state.request_id)
        return await cancel_on_disconnect(request, work)
    except ApiError as error:
        if error.status == 400 and error.param in (None, "input"):
            raise refused("query", error.message.removeprefix("input ")) from error
        raise


async def _searched(
    retrieval: Retrieval, store: Record, form: SearchRequest, metrics: GatewayMetrics, request_id: str
) -> dict[str, Any]:
    queries, answer = await asked(retrieval.answerers, form, metrics, request_id)
    options = form.ranking_options
    wanted = StoreSearch(
        queries, form.filters, form.max_num_results, options.score_threshold, cut=bool(answer)
    )
    results = await search(retrieval.library, store, wanted)
    return responses.search_page(queries, results, answer)
