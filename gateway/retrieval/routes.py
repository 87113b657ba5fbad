"""/v1/files and /v1/vector_stores."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from fastapi.responses import StreamingResponse

from conch.errors import refused
from retrieval.documents import PIECE, Page, Record
from retrieval.kinds import HEAD, drawn
from retrieval.library import FILE, PROCESSED, new_id

from ..services import ServicesDep
from ..upload import Kind, receive
from . import attachments, responses, stores
from .lists import Cursor, Order, RetrievalDep, idempotency, page_of
from .schema import upload_fields

DOCUMENT = Kind("file", "file and purpose", "cut the file, and upload its parts")
router = APIRouter()


@router.post("/v1/files")
async def upload(request: Request, services: ServicesDep, retrieval: RetrievalDep) -> dict[str, Any]:
    """Store a file."""
    async with receive(request, services.settings.max_upload_bytes, DOCUMENT) as form:
        purpose = upload_fields(form.fields, form.filename)
        path = Path(form.path)
        size = path.stat().st_size
        if size == 0:
            raise refused("file", "is empty; send one with content")
        digest = await asyncio.to_thread(_digest, path)
        body = {
            "filename": form.filename,
            "media_type": form.media_type,
            "picture": drawn(_head(path), form.filename),
            "purpose": purpose,
            "sha256": digest,
            "content": new_id("content-"),
        }
        name = new_id("file-", idempotency(request, FILE))
        record = Record(FILE, name, PROCESSED, time.time_ns(), parent=purpose, size=size, body=body)
        return responses.file_object(await retrieval.library.save_file(record, pieces_of(path)))


def _head(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(HEAD)


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


async def pieces_of(path: Path) -> AsyncIterator[bytes]:
    """Yield a file's bytes."""
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
    """List all files, or those with a purpose."""
    where = {"parent": purpose} if purpose else {}
    page = Page(FILE, where, [PROCESSED], limit, order == "desc")
    records, more = await page_of(retrieval.library, page, (after, None))
    return responses.listed([responses.file_object(record) for record in records], more)


@router.get("/v1/files/{file_id}")
async def get_file(file_id: str, retrieval: RetrievalDep) -> dict[str, Any]:
    """Get one file."""
    return responses.file_object(await retrieval.library.file_of(file_id))


@router.delete("/v1/files/{file_id}")
async def remove_file(file_id: str, retrieval: RetrievalDep) -> dict[str, Any]:
    """Delete a file, also from its vector stores."""
    await retrieval.library.delete_file(file_id)
    retrieval.worker.wake()
    return responses.deleted(file_id, "file")


@router.get("/v1/files/{file_id}/content")
async def file_content(file_id: str, retrieval: RetrievalDep) -> StreamingResponse:
    """Return the bytes of a file."""
    record = await retrieval.library.file_of(file_id)
    return StreamingResponse(
        retrieval.library.documents.read(record.body["content"]),
        media_type="application/octet-stream",
        headers={"Content-Length": str(record.size)},
    )


router.include_router(stores.router)
router.include_router(attachments.router)
