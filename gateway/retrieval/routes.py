"""/v1/files and /v1/vector_stores."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import JSONResponse, StreamingResponse

from ..disconnect import cancel_on_disconnect
from ..errors import ApiError, refused
from ..metrics import Metrics
from ..services import ServicesDep
from ..upload import Kind, receive
from . import responses
from .chain import asked
from .documents import PIECE, Page, Record
from .extraction import is_picture
from .library import (
    ATTACHMENT,
    BATCH,
    COMPLETED,
    DELETING,
    FILE,
    IN_PROGRESS,
    LIVE,
    PROCESSED,
    STORE,
    Library,
    attach,
    attachment_id,
    attachment_of,
    cancel_batch,
    caption,
    change,
    delete_file,
    deleting,
    detach,
    file_of,
    found,
    missing,
    model_of,
    new_id,
    save_file,
    spaces,
    store_of,
    with_attributes,
    with_body,
)
from .schema import (
    AttachRequest,
    BatchRequest,
    CreateStore,
    SearchRequest,
    StoreFields,
    UpdateAttributes,
    upload_fields,
)
from .search import Request as Search
from .search import search
from .service import Retrieval
from .worker import settled

DOCUMENT = Kind("file", "file and purpose", "cut the file, and upload its parts")
POLL = {"openai-poll-after-ms": "200"}  # for the SDK's polling helpers
router = APIRouter()


def retrieval_of(services: ServicesDep) -> Retrieval:
    """Retrieval, or a 404 that says how it is switched on."""
    if services.retrieval is None:
        raise ApiError(
            404,
            "files and vector stores are not served here; start the stack with an embedding model in "
            "MODEL_ID and with databases (docs/retrieval.md)",
            code="not_found",
        )
    return services.retrieval


RetrievalDep = Annotated[Retrieval, Depends(retrieval_of)]
Order = Literal["asc", "desc"]
Status = Literal["in_progress", "completed", "failed", "cancelled"]
Limit = Annotated[int, Query(ge=1, le=100)]
Cursor = Annotated[str | None, Query(max_length=128)]


def idempotency(request: Request, kind: str) -> str:
    """What the client has chosen as the name of this write, within its API key; empty: nothing."""
    given = request.headers.get("idempotency-key", "")
    if len(given) > 256:
        raise ApiError(
            400, "Idempotency-Key has more than 256 characters; shorten it", param="Idempotency-Key"
        )
    return f"{request.headers.get('authorization', '')}\n{kind}\n{given}" if given else ""


async def page_of(
    library: Library,
    page: Page,
    cursors: tuple[str | None, str | None],
    identity: Callable[[str], str],
    show: Callable[[Record], Any],
) -> dict[str, Any]:
    """A page of a list after or before a record, and whether there is more. `identity`: the record's id
    for an id that clients see.
    """
    after, before = cursors
    wanted = [identity(one) for one in cursors if one]
    there = await library.documents.get(page.kind, wanted) if wanted else {}
    for name in cursors:
        if name and identity(name) not in there:
            raise refused("after" if name == after else "before", f"{name[:80]!r} is not in this list")
    bounds = [there[identity(name)].order if name else None for name in cursors]
    backwards = before is not None and after is None
    asked = replace(page, limit=page.limit + 1, after=bounds[0], before=bounds[1])
    if backwards:  # those next to `before`, not the first of all
        asked = replace(asked, descending=not page.descending, after=bounds[1], before=None)
    records = await library.documents.page(asked)
    kept = records[: page.limit]
    rows = [await show(record) for record in (reversed(kept) if backwards else kept)]
    return responses.listed(rows, len(records) > page.limit)


async def _file_row(record: Record) -> dict[str, Any]:
    return responses.file_object(record)


async def _store_file_row(record: Record) -> dict[str, Any]:
    return responses.store_file(record)


@router.post("/v1/files")
async def upload(request: Request, services: ServicesDep, retrieval: RetrievalDep) -> dict[str, Any]:
    """Keep a file."""
    async with receive(request, services.settings.max_upload_bytes, DOCUMENT) as form:
        purpose = upload_fields(form.fields, form.filename)
        path = Path(form.path)
        size = path.stat().st_size
        if size == 0:
            raise refused("file", "is empty; send one with content")
        digest = await asyncio.to_thread(_digest, path)
        body = {
            "filename": form.filename,
            "purpose": purpose,
            "sha256": digest,
            "content": new_id("content-"),
        }
        name = new_id("file-", idempotency(request, FILE))
        record = Record(FILE, name, PROCESSED, time.time_ns(), parent=purpose, size=size, body=body)
        return responses.file_object(await save_file(retrieval.library, record, pieces_of(path)))


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


async def pieces_of(path: Path) -> AsyncIterator[bytes]:
    """A file's bytes."""
    with path.open("rb") as file:
        while piece := await asyncio.to_thread(file.read, PIECE):
            yield piece


@router.get("/v1/files")
async def list_files(
    retrieval: RetrievalDep,
    after: Cursor = None,
    limit: Annotated[int, Query(ge=1, le=10_000)] = 10_000,
    order: Order = "desc",
    purpose: Cursor = None,
) -> dict[str, Any]:
    """All files, or those with a purpose, which is what they belong to."""
    where = {"parent": purpose} if purpose else {}
    page = Page(FILE, where, [PROCESSED], limit, order == "desc")
    return await page_of(retrieval.library, page, (after, None), str, _file_row)


@router.get("/v1/files/{file_id}")
async def get_file(file_id: str, retrieval: RetrievalDep) -> dict[str, Any]:
    """One file."""
    return responses.file_object(await file_of(retrieval.library, file_id))


@router.delete("/v1/files/{file_id}")
async def remove_file(file_id: str, retrieval: RetrievalDep) -> dict[str, Any]:
    """Remove a file, from its vector stores, too."""
    await delete_file(retrieval.library, file_id)
    retrieval.worker.wake()
    return responses.deleted(file_id, "file")


@router.get("/v1/files/{file_id}/content")
async def file_content(file_id: str, retrieval: RetrievalDep) -> StreamingResponse:
    """The bytes of a file."""
    record = await file_of(retrieval.library, file_id)
    return StreamingResponse(
        retrieval.library.documents.read(record.body["content"]),
        media_type="application/octet-stream",
        headers={"Content-Length": str(record.size)},
    )


async def _shown(library: Library, record: Record) -> dict[str, Any]:
    return responses.store_object(record, await library.documents.sums(ATTACHMENT, {"parent": record.id}))


async def _files_of(library: Library, names: Mapping[str, Any], param: str) -> list[Record]:
    """Records of all files, or a 404 that names the first that is not there."""
    there = await library.documents.get(FILE, list(names))
    for name in names:
        if name not in there or there[name].status != PROCESSED:
            raise missing("file", name, param)
    return [there[name] for name in names]


def _usual(library: Library) -> list[str]:
    """The first model for texts, and the first that reads pictures."""
    pictures = [model for model, embedder in library.embedders.items() if embedder.pictures]
    return [*[model for model in library.embedders if model not in pictures][:1], *pictures[:1]]


@router.post("/v1/vector_stores")
async def create_store(form: CreateStore, request: Request, retrieval: RetrievalDep) -> dict[str, Any]:
    """Make a vector store, with files or without."""
    library = retrieval.library
    models = form.embedding_models or _usual(library)
    for model in models:
        if model not in library.embedders:
            served = ", ".join(library.embedders)
            raise refused("embedding_models", f"{model[:80]!r} is not served here; these are: {served}")
    files = await _files_of(library, dict.fromkeys(form.file_ids), "file_ids")
    now = time.time_ns()
    body = {
        "name": form.name or "",
        "description": form.description,
        "metadata": form.metadata or {},
        "spaces": spaces(library, models),
        "next": [],
        "active": now // 10**9,
    }
    name = new_id("vs_", idempotency(request, STORE))
    store = Record(STORE, name, LIVE, now, body=body)
    if not await library.documents.insert(store):
        there = (await library.documents.get(STORE, [name])).get(name)
        if there is None or there.status == DELETING:
            said = "this Idempotency-Key made a vector store that was deleted; choose a new one"
            raise ApiError(409, said, param="Idempotency-Key", code="conflict")
        store = there
    fields = {"attributes": {}, "strategy": vars(form.chunking_strategy.strategy)}
    for file in files:
        await attach(library, store, file, fields)
    retrieval.worker.wake()
    return await _shown(library, store)


@router.get("/v1/vector_stores")
async def list_stores(
    retrieval: RetrievalDep,
    after: Cursor = None,
    before: Cursor = None,
    limit: Limit = 20,
    order: Order = "desc",
) -> dict[str, Any]:
    """All vector stores."""

    async def show(record: Record) -> dict[str, Any]:
        return await _shown(retrieval.library, record)

    page = Page(STORE, {}, [LIVE], limit, order == "desc")
    return await page_of(retrieval.library, page, (after, before), str, show)


@router.get("/v1/vector_stores/{store_id}")
async def get_store(store_id: str, retrieval: RetrievalDep) -> dict[str, Any]:
    """One vector store."""
    return await _shown(retrieval.library, await store_of(retrieval.library, store_id))


@router.post("/v1/vector_stores/{store_id}")
async def modify_store(store_id: str, form: StoreFields, retrieval: RetrievalDep) -> dict[str, Any]:
    """Change its name or metadata."""

    def edit(record: Record) -> Record | None:
        given = {name: getattr(form, name) for name in ("name", "metadata") if name in form.model_fields_set}
        return with_body(record, **given) if record.status == LIVE else None

    await store_of(retrieval.library, store_id)
    changed = await change(retrieval.library, STORE, store_id, edit)
    if not changed:
        raise missing("vector store", store_id, "vector_store_id")
    return await _shown(retrieval.library, changed)


@router.delete("/v1/vector_stores/{store_id}")
async def delete_store(store_id: str, retrieval: RetrievalDep) -> dict[str, Any]:
    """Remove a store; its files stay."""
    await store_of(retrieval.library, store_id)
    await change(retrieval.library, STORE, store_id, deleting)
    retrieval.worker.wake()
    return responses.deleted(store_id, "vector_store.deleted")


@router.post("/v1/vector_stores/{store_id}/search")
async def search_store(
    store_id: str, form: SearchRequest, request: Request, services: ServicesDep, retrieval: RetrievalDep
) -> dict[str, Any]:
    """The chunks and pictures that fit best."""
    store = await store_of(retrieval.library, store_id)
    for model in map(model_of, store.body["spaces"]):
        if model not in retrieval.library.embedders:
            message = (
                f"model {model!r}, with which this store was embedded, is not served here; start it, or "
                "embed the store with another (docs/retrieval.md)"
            )
            raise ApiError(400, message, code="unsupported_model")
    try:
        work = _searched(retrieval.library, store, form, services.metrics, request.state.request_id)
        return await cancel_on_disconnect(request, work)
    except ApiError as error:
        if error.status == 400 and error.param in (None, "input"):
            raise refused("query", error.message.removeprefix("input ")) from error
        raise


async def _searched(
    library: Library, store: Record, form: SearchRequest, metrics: Metrics, request_id: str
) -> dict[str, Any]:
    queries, answer = await asked(library, form, metrics, request_id)
    options = form.ranking_options
    wanted = Search(queries, form.filters, form.max_num_results, options.score_threshold, cut=bool(answer))
    results = await search(library, store, wanted)
    return responses.search_page(queries, results, vars(answer) if answer else None)


@router.post("/v1/vector_stores/{store_id}/files")
async def attach_file(
    store_id: str, form: AttachRequest, services: ServicesDep, retrieval: RetrievalDep
) -> dict[str, Any]:
    """Put a file into a store; the answer waits for the worker, but not long."""
    store = await store_of(retrieval.library, store_id)
    file = await file_of(retrieval.library, form.file_id)
    record = await attach(retrieval.library, store, file, form.stored)
    retrieval.worker.wake()
    return responses.store_file(
        await settled(retrieval.library, record, services.settings.index_wait_seconds)
    )


@router.get("/v1/vector_stores/{store_id}/files")
async def list_store_files(
    store_id: str,
    retrieval: RetrievalDep,
    after: Cursor = None,
    before: Cursor = None,
    limit: Limit = 20,
    order: Order = "desc",
    filter: Status | None = None,  # noqa: A002
) -> dict[str, Any]:
    """The files of a store."""
    await store_of(retrieval.library, store_id)
    page = Page(ATTACHMENT, {"parent": store_id}, _statuses(filter), limit, order == "desc")
    return await page_of(
        retrieval.library, page, (after, before), lambda one: attachment_id(store_id, one), _store_file_row
    )


def _statuses(chosen: str | None) -> list[str]:
    return [chosen] if chosen else list(responses.STATUSES)


@router.get("/v1/vector_stores/{store_id}/files/{file_id}")
async def get_store_file(store_id: str, file_id: str, retrieval: RetrievalDep) -> Any:
    """One file of a store."""
    return _polled(responses.store_file(await attachment_of(retrieval.library, store_id, file_id)))


def _polled(body: dict[str, Any]) -> Any:
    """The SDK's helpers ask again after so long."""
    return JSONResponse(body, headers=POLL if body["status"] == IN_PROGRESS else None)


@router.post("/v1/vector_stores/{store_id}/files/{file_id}")
async def update_store_file(
    store_id: str, file_id: str, form: UpdateAttributes, services: ServicesDep, retrieval: RetrievalDep
) -> dict[str, Any]:
    """Change its attributes."""
    record = await attachment_of(retrieval.library, store_id, file_id)

    def edit(there: Record) -> Record | None:
        return with_attributes(there, form.attributes) if there.status != DELETING else None

    changed = await change(retrieval.library, ATTACHMENT, record.id, edit)
    if not changed:
        raise missing("file", file_id, "file_id")
    if is_picture(changed.body["filename"]):  # perhaps it has another caption
        retrieval.worker.wake()
        changed = await settled(retrieval.library, changed, services.settings.index_wait_seconds)
    return responses.store_file(changed)


@router.delete("/v1/vector_stores/{store_id}/files/{file_id}")
async def detach_file(store_id: str, file_id: str, retrieval: RetrievalDep) -> dict[str, Any]:
    """Take a file out of a store; the file itself stays."""
    await detach(retrieval.library, store_id, file_id)
    retrieval.worker.wake()
    return responses.deleted(file_id, "vector_store.file.deleted")


@router.get("/v1/vector_stores/{store_id}/files/{file_id}/content")
async def store_file_content(store_id: str, file_id: str, retrieval: RetrievalDep) -> dict[str, Any]:
    """Its chunks, as searches answer with them."""
    record = await attachment_of(retrieval.library, store_id, file_id)
    if is_picture(record.body["filename"]):
        return responses.contents([caption(record)])
    builds = list(record.body["builds"].values()) if record.status == COMPLETED else []
    texts = [piece.decode() async for piece in retrieval.library.documents.read(builds[0])] if builds else []
    return responses.contents(texts)


@router.post("/v1/vector_stores/{store_id}/file_batches")
async def create_batch(store_id: str, form: BatchRequest, retrieval: RetrievalDep) -> dict[str, Any]:
    """Put several files into a store."""
    library = retrieval.library
    store = await store_of(library, store_id)
    files = await _files_of(library, form.each, "files" if form.files else "file_ids")
    batch = Record(BATCH, new_id("vsfb_"), IN_PROGRESS, time.time_ns(), parent=store.id)
    await library.documents.insert(batch)
    for file in files:
        await attach(library, store, file, form.each[file.id], batch.id)
    retrieval.worker.wake()
    return await _batch(library, batch)


async def _batch(library: Library, batch: Record) -> dict[str, Any]:
    where = {"parent": batch.parent, "batch": batch.id}
    return responses.batch_object(batch, await library.documents.sums(ATTACHMENT, where))


async def _batch_of(library: Library, store_id: str, batch_id: str) -> Record:
    await store_of(library, store_id)
    batch = await found(library, BATCH, batch_id, "file batch", "batch_id")
    if batch.parent != store_id:
        raise missing("file batch", batch_id, "batch_id")
    return batch


@router.get("/v1/vector_stores/{store_id}/file_batches/{batch_id}")
async def get_batch(store_id: str, batch_id: str, retrieval: RetrievalDep) -> Any:
    """One batch."""
    batch = await _batch_of(retrieval.library, store_id, batch_id)
    return _polled(await _batch(retrieval.library, batch))


@router.post("/v1/vector_stores/{store_id}/file_batches/{batch_id}/cancel")
async def cancel(store_id: str, batch_id: str, retrieval: RetrievalDep) -> dict[str, Any]:
    """Stop what of a batch is not complete."""
    await _batch_of(retrieval.library, store_id, batch_id)
    await cancel_batch(retrieval.library, store_id, batch_id)
    retrieval.worker.wake()
    return await _batch(retrieval.library, await _batch_of(retrieval.library, store_id, batch_id))


@router.get("/v1/vector_stores/{store_id}/file_batches/{batch_id}/files")
async def list_batch_files(
    store_id: str,
    batch_id: str,
    retrieval: RetrievalDep,
    after: Cursor = None,
    before: Cursor = None,
    limit: Limit = 20,
    order: Order = "desc",
    filter: Status | None = None,  # noqa: A002
) -> dict[str, Any]:
    """The files of a batch."""
    await _batch_of(retrieval.library, store_id, batch_id)
    where = {"parent": store_id, "batch": batch_id}
    page = Page(ATTACHMENT, where, _statuses(filter), limit, order == "desc")
    return await page_of(
        retrieval.library, page, (after, before), lambda one: attachment_id(store_id, one), _store_file_row
    )
