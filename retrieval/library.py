"""Operations on records, for routes and worker: files, stores, and attachments (a file in a store).

An attachment's record decides what searches may find: the builds that it names in `builds` (and, until a new
one is complete, in `standing`), by space. A space is where vectors are compared: a model's texts under the
model's name, and the pictures of one that reads them under its name and PICTURES. (In a space of both, any
text would be nearer to a text than any picture is.) A build is one embedding of one file in one space, under
a random name. The name is stored in the record (`making`) before anything is written under it, so everything
that a killed process leaves is known, and removed (`waste`).
"""

from __future__ import annotations

import hashlib
import secrets
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from conch.errors import ApiError
from conch.pictures import Picture

from .documents import Documents, Page, Record
from .kinds import is_picture

if TYPE_CHECKING:
    from .vectors.milvus import MilvusVectors

FILE, STORE, ATTACHMENT, BATCH = "file", "store", "attachment", "batch"
LIVE, DELETING, UPLOADING, PROCESSED = "live", "deleting", "uploading", "processed"
IN_PROGRESS, COMPLETED, FAILED, CANCELLED = "in_progress", "completed", "failed", "cancelled"
UPLOAD_SECONDS = 3600.0  # an upload that took longer has died
TRIES = 50  # of a change that others make, too
NO_BUILDS: Mapping[str, Any] = {"builds": {}, "standing": {}, "making": {}, "waste": [], "counts": {}}


PICTURES = "#pictures"
CAPTION = "caption"  # the attribute of a picture that is embedded as its text
Item = str | Picture


class Embedder(Protocol):
    """A model that makes vectors of texts, and perhaps of pictures.

    Attributes:
        dimensions: size of a vector
        positions: the maximum tokens of one text, including special ones
        pictures: it reads pictures, too
    """

    dimensions: int
    positions: int
    pictures: bool

    async def embed(
        self, items: Sequence[Item], *, cut: bool
    ) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Return unit vectors [items, dimensions], and the token count of each text, [items]. With `cut`, a
        text that is too long is truncated instead of refused.

        Raises:
            ApiError: 400 for what the model does not take, 503 where it has no room.
        """


def new_id(prefix: str, key: str = "") -> str:
    """Make a random id, or always the same one for a key that a client has chosen."""
    return prefix + (hashlib.sha256(key.encode()).hexdigest()[:32] if key else secrets.token_hex(16))


def build_name(record: Record) -> str:
    """Make a new build's name, which starts with the file's id, by which searches find the record."""
    return f"{record.link}:{secrets.token_hex(8)}"


def attachment_id(store: str, file: str) -> str:
    """Return the id of the record of a file in a store."""
    return f"{store}/{file}"


def collection(store: str, space: str) -> str:
    """Return the vector database's name for a store's vectors of a space."""
    return f"{store}_{hashlib.sha256(space.encode()).hexdigest()[:8]}"


def model_of(space: str) -> str:
    """Return the model whose vectors a space has."""
    return space.removesuffix(PICTURES)


def caption(record: Record) -> str:
    """Return the caption in an attached picture's attributes; empty if they have none."""
    caption = record.body["attributes"].get(CAPTION)
    return caption if isinstance(caption, str) and caption.strip() and is_picture(record.body) else ""


def wanted(record: Record, among: Iterable[str]) -> list[str]:
    """Return the spaces in which an attached file has vectors: a text as text; a picture as picture and, if
    it has a caption, as text.
    """
    picture = is_picture(record.body)
    as_text = not picture or bool(caption(record))
    return [space for space in dict.fromkeys(among) if (picture if space.endswith(PICTURES) else as_text)]


def with_attributes(record: Record, attributes: Mapping[str, Any]) -> Record:
    """Return the record with other attributes. A picture with a new caption is embedded again, and is found
    by the old one until that is done.
    """
    changed = with_body(record, attributes=attributes)
    if caption(changed) == caption(record) or record.status not in (IN_PROGRESS, COMPLETED):
        return changed
    builds = {space: build for space, build in record.body["builds"].items() if space.endswith(PICTURES)}
    texts = {space: build for space, build in record.body["builds"].items() if space not in builds}
    standing = {**record.body["standing"], **texts}
    renewed = with_body(changed, builds=builds, standing=standing, last_error=None, attempts=0, lease="")
    return replace(renewed, status=IN_PROGRESS, due=time.time())


def missing(what: str, name: str, param: str) -> ApiError:
    """Make a 404."""
    return ApiError(404, f"there is no {what} {name[:80]!r}", param=param, code="not_found")


def visible(record: Record) -> set[str]:
    """Return the builds of an attachment that searches may find."""
    if record.status in (DELETING, CANCELLED, FAILED):
        return set()
    return {*record.body["builds"].values(), *record.body["standing"].values()}


def all_builds(record: Record) -> list[tuple[str, str]]:
    """Return space and name of every build that may have left something."""
    body = record.body
    named = [pair for part in ("builds", "standing", "making") for pair in body[part].items()]
    return [*named, *((space, build) for space, build in body["waste"])]


def with_body(record: Record, **changes: Any) -> Record:
    """Return the record with some fields of its body changed."""
    return replace(record, body={**record.body, **changes})


def deleting(record: Record) -> Record:
    """Return the record marked as deleted, so that it is hidden; the worker removes what belongs to it."""
    return replace(record, status=DELETING, due=time.time())


@dataclass(frozen=True)
class Library:
    """Both databases, the served models that embed, text-only ones first, and what is done to records."""

    documents: Documents
    vectors: MilvusVectors
    embedders: Mapping[str, Embedder] = field(default_factory=dict)
    scales: dict[str, Any] = field(default_factory=dict)  # calibration.Scales by model, as they are measured

    def spaces(self, models: Iterable[str]) -> list[str]:
        """Return the spaces of served models."""
        return [
            space
            for model in dict.fromkeys(models)
            for space in ([model, model + PICTURES] if self.embedders[model].pictures else [model])
        ]

    async def found(self, kind: str, name: str, what: str, param: str) -> Record:
        """Return a record that is not being deleted.

        Raises:
            ApiError: 404.
        """
        record = (await self.documents.get(kind, [name])).get(name)
        if record is None or record.status in (DELETING, UPLOADING):
            raise missing(what, name, param)
        return record

    async def store_of(self, name: str) -> Record:
        """Return a vector store, or raise 404."""
        return await self.found(STORE, name, "vector store", "vector_store_id")

    async def file_of(self, name: str) -> Record:
        """Return a file, or raise 404."""
        return await self.found(FILE, name, "file", "file_id")

    async def attachment_of(self, store: str, file: str) -> Record:
        """Return a file of a store, or raise 404."""
        await self.store_of(store)
        record = (await self.documents.get(ATTACHMENT, [key := attachment_id(store, file)])).get(key)
        if record is None or record.status == DELETING:
            raise missing("file", file, "file_id")
        return record

    async def change(self, kind: str, name: str, edit: Callable[[Record], Record | None]) -> Record | None:
        """Write `edit(record)`, retrying if the record has changed meanwhile. `edit` returns None if nothing
        is to be done. Returns None if there is no such record or nothing was to be done.

        Raises:
            ApiError: 409 if others change it all the time.
        """
        for _ in range(TRIES):
            record = (await self.documents.get(kind, [name])).get(name)
            wanted = record and edit(record)
            if not wanted:
                return None
            if written := await self.documents.update(wanted):
                return written
        raise ApiError(409, f"{name[:80]!r} was changed by concurrent requests; retry", code="conflict")

    async def every(self, page: Page) -> AsyncIterator[Record]:
        """Yield all records of a list, oldest first."""
        page = replace(page, limit=500, descending=False)
        while records := await self.documents.page(page):
            for record in records:
                yield record
            page = replace(page, after=records[-1].order)

    async def save_file(self, record: Record, pieces: AsyncIterator[bytes]) -> Record:
        """Save a file, which becomes visible when it is complete. Under an existing id, return that file if
        it is the same.

        Raises:
            ApiError: 409 for another file under the same idempotency key.
        """
        draft = replace(record, status=UPLOADING, due=time.time() + UPLOAD_SECONDS)
        owner = record.body["content"]
        if not await self.documents.insert(draft):
            return await self._same_file(record)
        number = 0
        async for piece in pieces:
            await self.documents.write(owner, number, [piece])
            number += 1
        ready = await self.documents.update(replace(draft, status=PROCESSED, due=0))
        if not ready:
            raise ApiError(503, "the upload took too long; send it again", code="unavailable", retry_after=2)
        return ready

    async def _same_file(self, record: Record) -> Record:
        there = (await self.documents.get(FILE, [record.id])).get(record.id)
        if there and there.status == PROCESSED and there.body["sha256"] == record.body["sha256"]:
            return there
        if there and there.status == UPLOADING:  # its first sender may have died
            await self.documents.update(deleting(there))
            message = "an upload with this Idempotency-Key did not finish; send it again"
            raise ApiError(503, message, code="unavailable", retry_after=3)
        message = "this Idempotency-Key was used for another file; choose a new one"
        raise ApiError(409, message, param="Idempotency-Key", code="conflict")

    async def attach(self, store: Record, file: Record, fields: Mapping[str, Any], batch: str = "") -> Record:
        """Add a file to a store as a record, which the worker finds. Adding the same file in the same way
        again changes nothing, unless it had failed; added in another way, the old chunks are found until the
        new ones are complete.
        """
        key = attachment_id(store.id, file.id)
        own = {"filename": file.body["filename"], "picture": is_picture(file.body)}
        body = {**NO_BUILDS, **fields, **own, "last_error": None, "attempts": 0}
        record = Record(
            ATTACHMENT, key, IN_PROGRESS, time.time_ns(), store.id, file.id, batch, time.time(), body=body
        )
        if await self.documents.insert(record):
            again = (await self.documents.get(FILE, [file.id])).get(file.id)
            if again is None or again.status == DELETING:  # deleted meanwhile, before it was listed here
                await self.change(ATTACHMENT, key, deleting)
                raise missing("file", file.id, "file_id")
            return record

        def edit(there: Record) -> Record | None:
            if there.status == DELETING:
                return None
            same = there.body["strategy"] == fields["strategy"] and there.status in (IN_PROGRESS, COMPLETED)
            if same:
                return replace(with_attributes(there, fields["attributes"]), batch=batch or there.batch)
            standing = {**there.body["standing"], **there.body["builds"]}
            renewed = with_body(
                there, **fields, builds={}, standing=standing, last_error=None, attempts=0, lease=""
            )
            return replace(renewed, status=IN_PROGRESS, batch=batch or there.batch, due=time.time())

        changed = await self.change(ATTACHMENT, key, edit)
        if not changed:
            message = "this file is being removed from this vector store; try again"
            raise ApiError(409, message, code="conflict", retry_after=1)
        return changed

    async def delete_file(self, name: str) -> None:
        """Delete a file. It is hidden, by itself and in every store, when this returns."""
        await self.file_of(name)
        await self.change(FILE, name, deleting)
        async for record in self.every(Page(ATTACHMENT, {"link": name})):
            await self.change(ATTACHMENT, record.id, deleting)

    async def detach(self, store: str, file: str) -> None:
        """Remove a file from a store. It is not found there any more when this returns."""
        record = await self.attachment_of(store, file)
        await self.change(ATTACHMENT, record.id, deleting)

    async def cancel_batch(self, store: str, batch: str) -> None:
        """Cancel what is not complete of a batch: it is neither started nor finished any more."""

        def edit(record: Record) -> Record | None:
            if record.status != IN_PROGRESS:
                return None
            emptied = with_body(record, builds={}, standing={}, making={}, waste=all_builds(record))
            return replace(emptied, status=CANCELLED, due=time.time())

        await self.change(BATCH, batch, lambda record: replace(record, status=CANCELLED))
        async for record in self.every(Page(ATTACHMENT, {"parent": store, "batch": batch}, [IN_PROGRESS])):
            await self.change(ATTACHMENT, record.id, edit)
