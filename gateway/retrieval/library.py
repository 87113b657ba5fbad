"""What the routes and the worker do with records: files, stores, and attachments (a file in a store).

An attachment's record decides what searches may find: the builds that it names in `builds` (and, until a
new one is complete, in `standing`). A build is one embedding of one file by one model, under a random
name. The name is in the record (`making`) before anything is written under it, so that whatever a killed
process leaves behind is known, and removed (`waste`).
"""

from __future__ import annotations

import hashlib
import secrets
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ..errors import ApiError
from .documents import Documents, Page, Record
from .vectors import Vectors

FILE, STORE, ATTACHMENT, BATCH = "file", "store", "attachment", "batch"
LIVE, DELETING, UPLOADING, PROCESSED = "live", "deleting", "uploading", "processed"
IN_PROGRESS, COMPLETED, FAILED, CANCELLED = "in_progress", "completed", "failed", "cancelled"
UPLOAD_SECONDS = 3600.0  # an upload that took longer has died
TRIES = 50  # of a change that others make, too
NO_BUILDS: Mapping[str, Any] = {"builds": {}, "standing": {}, "making": {}, "waste": [], "counts": {}}


class Embedder(Protocol):
    """A model that makes vectors of texts."""

    @property
    def model(self) -> str:
        """Its MODEL_ID."""

    @property
    def dimensions(self) -> int:
        """Of a vector."""

    @property
    def positions(self) -> int:
        """Tokens of one text, special ones included."""

    async def embed(self, texts: list[str], *, cut: bool) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Unit vectors, and how many tokens each text has. `cut`: one that is too long is cut and not
        refused.
        """


@dataclass(frozen=True)
class Library:
    """Both databases and the models that are served, the default first."""

    documents: Documents
    vectors: Vectors
    embedders: Mapping[str, Embedder] = field(default_factory=dict)


def new_id(prefix: str, key: str = "") -> str:
    """A random id, or always the same one for a key that a client has chosen."""
    return prefix + (hashlib.sha256(key.encode()).hexdigest()[:32] if key else secrets.token_hex(16))


def build_name(record: Record) -> str:
    """A new build's name: it begins with the file's id, under which searches find the record."""
    return f"{record.link}:{secrets.token_hex(8)}"


def attachment_id(store: str, file: str) -> str:
    """The id of the record of a file in a store."""
    return f"{store}/{file}"


def collection(store: str, model: str) -> str:
    """The vector database's name for a store's vectors of a model."""
    return f"{store}_{hashlib.sha256(model.encode()).hexdigest()[:8]}"


def missing(what: str, name: str, param: str) -> ApiError:
    """A 404."""
    return ApiError(404, f"there is no {what} {name[:80]!r}", param=param, code="not_found")


def visible(record: Record) -> set[str]:
    """Builds of an attachment that searches may find."""
    if record.status in (DELETING, CANCELLED, FAILED):
        return set()
    return {*record.body["builds"].values(), *record.body["standing"].values()}


def all_builds(record: Record) -> list[tuple[str, str]]:
    """Model and name of every build that may have left something."""
    body = record.body
    named = [pair for part in ("builds", "standing", "making") for pair in body[part].items()]
    return [*named, *((model, build) for model, build in body["waste"])]


def with_body(record: Record, **changes: Any) -> Record:
    """The record with some fields of its body changed."""
    return replace(record, body={**record.body, **changes})


def deleting(record: Record) -> Record:
    """The record with the mark that nobody sees it any more; the worker removes what belongs to it."""
    return replace(record, status=DELETING, due=time.time())


async def found(library: Library, kind: str, name: str, what: str, param: str) -> Record:
    """A record that is not being deleted.

    Raises:
        ApiError: 404.
    """
    record = (await library.documents.get(kind, [name])).get(name)
    if record is None or record.status in (DELETING, UPLOADING):
        raise missing(what, name, param)
    return record


async def store_of(library: Library, name: str) -> Record:
    """A vector store, or 404."""
    return await found(library, STORE, name, "vector store", "vector_store_id")


async def file_of(library: Library, name: str) -> Record:
    """A file, or 404."""
    return await found(library, FILE, name, "file", "file_id")


async def attachment_of(library: Library, store: str, file: str) -> Record:
    """A file of a store, or 404."""
    await store_of(library, store)
    record = (await library.documents.get(ATTACHMENT, [key := attachment_id(store, file)])).get(key)
    if record is None or record.status == DELETING:
        raise missing("file", file, "file_id")
    return record


async def change(
    library: Library, kind: str, name: str, edit: Callable[[Record], Record | None]
) -> Record | None:
    """Write `edit(record)` if nobody has changed the record meanwhile; else once more. `edit` gives None
    where nothing is to be done. None: there is no such record, or nothing was to be done.

    Raises:
        ApiError: 409 if others change it all the time.
    """
    for _ in range(TRIES):
        record = (await library.documents.get(kind, [name])).get(name)
        wanted = record and edit(record)
        if not wanted:
            return None
        if written := await library.documents.update(wanted):
            return written
    raise ApiError(409, f"{name[:80]!r} is changed by others all the time; try again", code="conflict")


async def every(library: Library, page: Page) -> AsyncIterator[Record]:
    """All records of a list, from the oldest."""
    page = replace(page, limit=500, descending=False)
    while records := await library.documents.page(page):
        for record in records:
            yield record
        page = replace(page, after=records[-1].order)


async def save_file(library: Library, record: Record, pieces: AsyncIterator[bytes]) -> Record:
    """A file becomes visible when all of it is there. Under an id that exists: that file, if it is the same.

    Raises:
        ApiError: 409 for another file under the same idempotency key.
    """
    draft = replace(record, status=UPLOADING, due=time.time() + UPLOAD_SECONDS)
    owner = record.body["content"]
    if not await library.documents.insert(draft):
        return await _same_file(library, record)
    number = 0
    async for piece in pieces:
        await library.documents.write(owner, number, [piece])
        number += 1
    ready = await library.documents.update(replace(draft, status=PROCESSED, due=0))
    if not ready:
        raise ApiError(503, "the upload took too long; send it again", code="unavailable", retry_after=2)
    return ready


async def _same_file(library: Library, record: Record) -> Record:
    there = (await library.documents.get(FILE, [record.id])).get(record.id)
    if there and there.status == PROCESSED and there.body["sha256"] == record.body["sha256"]:
        return there
    if there and there.status == UPLOADING:  # whoever sent it first may have died
        await library.documents.update(deleting(there))
        raise ApiError(
            503,
            "an upload with this Idempotency-Key did not finish; send it again",
            code="unavailable",
            retry_after=3,
        )
    raise ApiError(
        409,
        "this Idempotency-Key was used for another file; choose a new one",
        param="Idempotency-Key",
        code="conflict",
    )


async def attach(
    library: Library, store: Record, file: Record, fields: Mapping[str, Any], batch: str = ""
) -> Record:
    """Put a file into a store: its record, which the worker finds. The same file in the same way again
    changes nothing, unless it had failed; in another way, the old chunks are found until the new ones are
    complete.
    """
    key, now = attachment_id(store.id, file.id), time.time()
    body = {**NO_BUILDS, **fields, "filename": file.body["filename"], "last_error": None, "attempts": 0}
    record = Record(
        ATTACHMENT, key, IN_PROGRESS, time.time_ns(), store.id, file.id, batch, due=now, size=0, body=body
    )
    if await library.documents.insert(record):
        again = (await library.documents.get(FILE, [file.id])).get(file.id)
        if again is None or again.status == DELETING:  # deleted meanwhile, before it was listed here
            await change(library, ATTACHMENT, key, deleting)
            raise missing("file", file.id, "file_id")
        return record

    def edit(there: Record) -> Record | None:
        if there.status == DELETING:
            return None
        same = there.body["strategy"] == fields["strategy"] and there.status in (IN_PROGRESS, COMPLETED)
        if same:
            return replace(with_body(there, attributes=fields["attributes"]), batch=batch or there.batch)
        standing = {**there.body["standing"], **there.body["builds"]}
        renewed = with_body(
            there, **fields, builds={}, standing=standing, last_error=None, attempts=0, lease=""
        )
        return replace(renewed, status=IN_PROGRESS, batch=batch or there.batch, due=now)

    changed = await change(library, ATTACHMENT, key, edit)
    if not changed:
        raise ApiError(
            409,
            "this file is being removed from this vector store; try again",
            code="conflict",
            retry_after=1,
        )
    return changed


async def delete_file(library: Library, name: str) -> None:
    """Nobody sees it any more, neither by itself nor in a store, when this returns."""
    await file_of(library, name)
    await change(library, FILE, name, deleting)
    async for record in every(library, Page(ATTACHMENT, {"link": name})):
        await change(library, ATTACHMENT, record.id, deleting)


async def detach(library: Library, store: str, file: str) -> None:
    """Nobody finds it in this store any more when this returns."""
    record = await attachment_of(library, store, file)
    await change(library, ATTACHMENT, record.id, deleting)


async def cancel_batch(library: Library, store: str, batch: str) -> None:
    """What of a batch is not complete is not begun or finished any more."""

    def edit(record: Record) -> Record | None:
        if record.status != IN_PROGRESS:
            return None
        waste = [*record.body["waste"], *([m, b] for m, b in all_builds(with_body(record, waste=[])))]
        emptied = with_body(record, builds={}, standing={}, making={}, waste=waste)
        return replace(emptied, status=CANCELLED, due=time.time())

    await change(library, BATCH, batch, lambda record: replace(record, status=CANCELLED))
    async for record in every(library, Page(ATTACHMENT, {"parent": store, "batch": batch}, [IN_PROGRESS])):
        await change(library, ATTACHMENT, record.id, edit)
