"""What the routes of files and vector stores share: the service, idempotent writes, pages of lists."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Annotated, Any, Literal

from fastapi import Depends, Query, Request
from pydantic import BaseModel

from conch.errors import ApiError, refused
from retrieval.documents import Page, Record
from retrieval.library import FILE, PROCESSED, Library, missing

from ..services import ServicesDep
from .service import Retrieval


def retrieval_of(services: ServicesDep) -> Retrieval:
    """Return the retrieval service, or a 404 that says how to enable it."""
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
Cursor = Annotated[str | None, Query(max_length=128)]


class Listing(BaseModel):
    """Which page of a list is requested."""

    after: Cursor = None
    before: Cursor = None
    limit: Annotated[int, Query(ge=1, le=100)] = 20
    order: Order = "desc"


def idempotency(request: Request, kind: str) -> str:
    """Return the client's idempotency key for this write, within its API key; empty without one."""
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
    identity: Callable[[str], str] = str,
) -> tuple[list[Record], bool]:
    """Return a page of a list after or before a record, and whether there is more. `identity` maps an id that
    clients see to the record's.

    Raises:
        ApiError: 400 for a cursor that is not in the list.
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
    return kept[::-1] if backwards else kept, len(records) > page.limit


async def files_of(library: Library, names: Mapping[str, Any], param: str) -> list[Record]:
    """Return the records of all files, or a 404 that names the first missing one."""
    there = await library.documents.get(FILE, list(names))
    for name in names:
        if name not in there or there[name].status != PROCESSED:
            raise missing("file", name, param)
    return [there[name] for name in names]
