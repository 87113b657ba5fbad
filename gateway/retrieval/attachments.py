"""/v1/vector_stores/{store_id}/files and /file_batches: files of a store, singly and in batches."""

from __future__ import annotations

import time
from functools import partial
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query
from fastapi.responses import JSONResponse

from retrieval.documents import Page, Record
from retrieval.kinds import is_picture
from retrieval.library import (
    ATTACHMENT,
    BATCH,
    COMPLETED,
    DELETING,
    IN_PROGRESS,
    Library,
    attachment_id,
    caption,
    missing,
    new_id,
    with_attributes,
)
from retrieval.worker import settled

from ..services import ServicesDep
from . import responses
from .lists import Listing, RetrievalDep, files_of, page_of
from .schema import AttachRequest, BatchRequest, UpdateAttributes

POLL = {"openai-poll-after-ms": "200"}  # for the SDK's polling helpers
router = APIRouter()


class FileListing(Listing):
    """Which page of a list of files is requested. `filter`: the status of those to show, if not all."""

    filter: Literal["in_progress", "completed", "failed", "cancelled"] | None = None


ListingQuery = Annotated[FileListing, Query()]


async def _attachments(
    library: Library, store_id: str, where: dict[str, Any], wanted: FileListing
) -> dict[str, Any]:
    statuses: list[str] = [wanted.filter] if wanted.filter else list(responses.STATUSES)
    page = Page(ATTACHMENT, where, statuses, wanted.limit, wanted.order == "desc")
    cursors = wanted.after, wanted.before
    records, more = await page_of(library, page, cursors, partial(attachment_id, store_id))
    return responses.listed([responses.store_file(record) for record in records], more)


@router.post("/v1/vector_stores/{store_id}/files")
async def attach_file(
    store_id: str, form: AttachRequest, services: ServicesDep, retrieval: RetrievalDep
) -> dict[str, Any]:
    """Add a file to a store; the answer waits a short time for the worker."""
    store = await retrieval.library.store_of(store_id)
    file = await retrieval.library.file_of(form.file_id)
    record = await retrieval.library.attach(store, file, form.stored)
    retrieval.worker.wake()
    return responses.store_file(
        await settled(retrieval.library, record, services.settings.index_wait_seconds)
    )


@router.get("/v1/vector_stores/{store_id}/files")
async def list_store_files(store_id: str, wanted: ListingQuery, retrieval: RetrievalDep) -> dict[str, Any]:
    """List the files of a store."""
    await retrieval.library.store_of(store_id)
    return await _attachments(retrieval.library, store_id, {"parent": store_id}, wanted)


@router.get("/v1/vector_stores/{store_id}/files/{file_id}")
async def get_store_file(store_id: str, file_id: str, retrieval: RetrievalDep) -> Any:
    """Get one file of a store."""
    return _polled(responses.store_file(await retrieval.library.attachment_of(store_id, file_id)))


def _polled(body: dict[str, Any]) -> Any:
    """Set the interval after which the SDK's helpers poll again."""
    return JSONResponse(body, headers=POLL if body["status"] == IN_PROGRESS else None)


@router.post("/v1/vector_stores/{store_id}/files/{file_id}")
async def update_store_file(
    store_id: str, file_id: str, form: UpdateAttributes, services: ServicesDep, retrieval: RetrievalDep
) -> dict[str, Any]:
    """Change its attributes."""
    record = await retrieval.library.attachment_of(store_id, file_id)

    def edit(there: Record) -> Record | None:
        return with_attributes(there, form.attributes) if there.status != DELETING else None

    changed = await retrieval.library.change(ATTACHMENT, record.id, edit)
    if not changed:
        raise missing("file", file_id, "file_id")
    if is_picture(changed.body):  # perhaps it has another caption
        retrieval.worker.wake()
        changed = await settled(retrieval.library, changed, services.settings.index_wait_seconds)
    return responses.store_file(changed)


@router.delete("/v1/vector_stores/{store_id}/files/{file_id}")
async def detach_file(store_id: str, file_id: str, retrieval: RetrievalDep) -> dict[str, Any]:
    """Remove a file from a store; the file itself stays."""
    await retrieval.library.detach(store_id, file_id)
    retrieval.worker.wake()
    return responses.deleted(file_id, "vector_store.file.deleted")


@router.get("/v1/vector_stores/{store_id}/files/{file_id}/content")
async def store_file_content(store_id: str, file_id: str, retrieval: RetrievalDep) -> dict[str, Any]:
    """Return its chunks as searches return them."""
    record = await retrieval.library.attachment_of(store_id, file_id)
    if is_picture(record.body):
        return responses.contents([caption(record)])
    builds = list(record.body["builds"].values()) if record.status == COMPLETED else []
    texts = [piece.decode() async for piece in retrieval.library.documents.read(builds[0])] if builds else []
    return responses.contents(texts)


@router.post("/v1/vector_stores/{store_id}/file_batches")
async def create_batch(store_id: str, form: BatchRequest, retrieval: RetrievalDep) -> dict[str, Any]:
    """Add several files to a store."""
    library = retrieval.library
    store = await library.store_of(store_id)
    files = await files_of(library, form.each, "files" if form.files else "file_ids")
    batch = Record(BATCH, new_id("vsfb_"), IN_PROGRESS, time.time_ns(), parent=store.id)
    await library.documents.insert(batch)
    for file in files:
        await library.attach(store, file, form.each[file.id], batch.id)
    retrieval.worker.wake()
    return await _batch(library, batch)


async def _batch(library: Library, batch: Record) -> dict[str, Any]:
    where = {"parent": batch.parent, "batch": batch.id}
    return responses.batch_object(batch, await library.documents.sums(ATTACHMENT, where))


async def _batch_of(library: Library, store_id: str, batch_id: str) -> Record:
    await library.store_of(store_id)
    batch = await library.found(BATCH, batch_id, "file batch", "batch_id")
    if batch.parent != store_id:
        raise missing("file batch", batch_id, "batch_id")
    return batch


@router.get("/v1/vector_stores/{store_id}/file_batches/{batch_id}")
async def get_batch(store_id: str, batch_id: str, retrieval: RetrievalDep) -> Any:
    """Get one batch."""
    batch = await _batch_of(retrieval.library, store_id, batch_id)
    return _polled(await _batch(retrieval.library, batch))


@router.post("/v1/vector_stores/{store_id}/file_batches/{batch_id}/cancel")
async def cancel(store_id: str, batch_id: str, retrieval: RetrievalDep) -> dict[str, Any]:
    """Cancel what is not complete of a batch."""
    await _batch_of(retrieval.library, store_id, batch_id)
    await retrieval.library.cancel_batch(store_id, batch_id)
    retrieval.worker.wake()
    return await _batch(retrieval.library, await _batch_of(retrieval.library, store_id, batch_id))


@router.get("/v1/vector_stores/{store_id}/file_batches/{batch_id}/files")
async def list_batch_files(
    store_id: str, batch_id: str, wanted: ListingQuery, retrieval: RetrievalDep
) -> dict[str, Any]:
    """List the files of a batch."""
    await _batch_of(retrieval.library, store_id, batch_id)
    where = {"parent": store_id, "batch": batch_id}
    return await _attachments(retrieval.library, store_id, where, wanted)
