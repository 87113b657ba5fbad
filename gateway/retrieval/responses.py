"""Write records in OpenAI's response formats."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from retrieval.documents import Record
from retrieval.library import CANCELLED, COMPLETED, FAILED, IN_PROGRESS, Item, model_of
from retrieval.search import Result

Sums = Mapping[str, tuple[int, int]]
STATUSES = (IN_PROGRESS, COMPLETED, FAILED, CANCELLED)


def file_object(record: Record) -> dict[str, Any]:
    """Make an openai.types.FileObject."""
    return {
        "id": record.id,
        "object": "file",
        "bytes": record.size,
        "created_at": record.created,
        "filename": record.body["filename"],
        "purpose": record.body["purpose"],
        "status": "processed",
        "expires_at": None,
        "status_details": None,
    }


def deleted(name: str, kind: str) -> dict[str, Any]:
    """Make FileDeleted, VectorStoreDeleted or VectorStoreFileDeleted."""
    return {"id": name, "object": kind, "deleted": True}


def counts(sums: Sums) -> dict[str, int]:
    """Count files by status."""
    found = {status: sums.get(status, (0, 0))[0] for status in STATUSES}
    return {**found, "total": sum(found.values())}


def store_object(record: Record, sums: Sums) -> dict[str, Any]:
    """Make an openai.types.VectorStore; `embedding_models` is an extension."""
    files = counts(sums)
    return {
        "id": record.id,
        "object": "vector_store",
        "created_at": record.created,
        "name": record.body["name"],
        "description": record.body["description"],
        "usage_bytes": sums.get(COMPLETED, (0, 0))[1],
        "file_counts": files,
        "status": IN_PROGRESS if files[IN_PROGRESS] else COMPLETED,
        "expires_after": None,
        "expires_at": None,
        "last_active_at": record.body["active"],
        "metadata": record.body["metadata"],
        "embedding_models": list(dict.fromkeys(model_of(space) for space in record.body["spaces"])),
    }


def store_file(record: Record) -> dict[str, Any]:
    """Make an openai.types.vector_stores.VectorStoreFile; the extension `guessed_encoding` says which
    encoding was used for a file that declares none.
    """
    strategy = record.body["strategy"]
    return {
        "id": record.link,
        "object": "vector_store.file",
        "created_at": record.created,
        "vector_store_id": record.parent,
        "usage_bytes": record.size,
        "status": record.status,
        "last_error": record.body["last_error"],
        "attributes": record.body["attributes"],
        **({"guessed_encoding": guess} if (guess := record.body.get("encoding")) else {}),
        "chunking_strategy": {
            "type": "static",
            "static": {
                "max_chunk_size_tokens": strategy["max_tokens"],
                "chunk_overlap_tokens": strategy["overlap"],
            },
        },
    }


def batch_object(record: Record, sums: Sums) -> dict[str, Any]:
    """Make an openai.types.vector_stores.VectorStoreFileBatch."""
    files = counts(sums)
    ended = CANCELLED if record.status == CANCELLED else COMPLETED
    return {
        "id": record.id,
        "object": "vector_store.files_batch",
        "created_at": record.created,
        "vector_store_id": record.parent,
        "status": IN_PROGRESS if files[IN_PROGRESS] else ended,
        "file_counts": files,
    }


def listed(rows: Sequence[dict[str, Any]], more: bool) -> dict[str, Any]:
    """Make a page of a list."""
    ends = (rows[0]["id"], rows[-1]["id"]) if rows else (None, None)
    return {"object": "list", "data": list(rows), "first_id": ends[0], "last_id": ends[1], "has_more": more}


def contents(texts: Sequence[str]) -> dict[str, Any]:
    """Return the chunks of a file."""
    data = {"data": _content(texts), "has_more": False, "next_page": None}
    return {"object": "vector_store.file_content.page", **data}


def _content(texts: Sequence[str]) -> list[dict[str, str]]:
    return [{"type": "text", "text": text} for text in texts if text]


def search_page(
    queries: Sequence[Item], results: Sequence[Result], answer: Mapping[str, str]
) -> dict[str, Any]:
    """Make openai.types.VectorStoreSearchResponse, best first. Extensions: `cosines`, and `answer`, a model's
    answer about a picture, which was the query.
    """
    data = [
        {
            "file_id": result.attachment.link,
            "filename": result.attachment.body["filename"],
            "score": round(result.score, 6),
            "attributes": result.attachment.body["attributes"],
            "content": _content([result.text]),
            "cosines": {model: round(cosine, 6) for model, cosine in result.cosines.items()},
        }
        for result in results
    ]
    return {
        "object": "vector_store.search_results.page",
        "search_query": [query if isinstance(query, str) else "[picture]" for query in queries],
        **({"answer": answer} if answer else {}),
        "data": data,
        "has_more": False,
        "next_page": None,
    }
