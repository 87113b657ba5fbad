"""Requests about files and vector stores as types. OpenAI's fields that this stack cannot support are refused
by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, model_validator

from conch.errors import refused, unknown
from retrieval.chunking import ChunkingStrategy
from retrieval.library import Item

from ..embeddings.schema import Part, content
from ..fields import Fields, Text
from ..text.schema import TextPart
from ..vision.parts import ImagePart
from .filters import Filter, Value

PURPOSES = ("assistants", "batch", "fine-tune", "vision", "user_data", "evals")
MOST_FILES = 2000  # of one batch
MOST_PAIRS = 16  # attributes of a file, metadata of a store
MOST_QUERIES = 32
LONGEST_QUERY = 4096  # characters
LONGEST_NAME = 256


def _pairs(given: dict[str, Any]) -> dict[str, Any]:
    if len(given) > MOST_PAIRS:
        raise ValueError(f"it has {len(given)} keys; send {MOST_PAIRS} at most")
    for key, value in given.items():
        if not 1 <= len(key) <= 64:
            raise ValueError(f"the key {key[:80]!r} has {len(key)} characters; use 1 to 64")
        if isinstance(value, str) and len(value) > 512:
            raise ValueError(f"the value of {key!r} has {len(value)} characters; use 512 at most")
    return given


Attributes = Annotated[dict[Text, Value], AfterValidator(_pairs)]
Metadata = Annotated[dict[Text, Text], AfterValidator(_pairs)]
Name = Annotated[Text, Field(max_length=LONGEST_NAME)]
Id = Annotated[Text, Field(min_length=1, max_length=128)]


class Static(Fields):
    """OpenAI's limits."""

    max_chunk_size_tokens: int = Field(ge=100, le=4096, strict=True)
    chunk_overlap_tokens: int = Field(ge=0, strict=True)

    @model_validator(mode="after")
    def _half(self) -> Static:
        if 2 * self.chunk_overlap_tokens > self.max_chunk_size_tokens:
            raise ValueError("chunk_overlap_tokens must not exceed half of max_chunk_size_tokens")
        return self


class StaticChunking(Fields):
    """Chunks of this many tokens."""

    type: Literal["static"]
    static: Static


class AutoChunking(Fields):
    """OpenAI's default: 800 tokens with an overlap of 400."""

    type: Literal["auto"]


Chunking = Annotated[AutoChunking | StaticChunking, Field(discriminator="type")]


def stored_strategy(chosen: AutoChunking | StaticChunking) -> dict[str, int]:
    """Return the worker's chunking strategy for a record."""
    if isinstance(chosen, AutoChunking):
        return vars(ChunkingStrategy())
    return vars(ChunkingStrategy(chosen.static.max_chunk_size_tokens, chosen.static.chunk_overlap_tokens))


class FileOptions(Fields):
    """How to add a file to a store."""

    attributes: Attributes = Field(default_factory=dict)
    chunking_strategy: Chunking = AutoChunking(type="auto")

    @property
    def stored(self) -> dict[str, Any]:
        """Return the options for the record."""
        return {"attributes": self.attributes, "strategy": stored_strategy(self.chunking_strategy)}


class AttachRequest(FileOptions):
    """Body of POST /v1/vector_stores/{id}/files."""

    file_id: Id


class UpdateAttributes(Fields):
    """Body of POST /v1/vector_stores/{id}/files/{file}; null removes all."""

    attributes: Attributes = Field(default_factory=dict)


class BatchRequest(FileOptions):
    """Body of POST /v1/vector_stores/{id}/file_batches."""

    file_ids: Annotated[list[Id], Field(min_length=1, max_length=MOST_FILES, fail_fast=True)] | None = None
    files: (
        Annotated[list[AttachRequest], Field(min_length=1, max_length=MOST_FILES, fail_fast=True)] | None
    ) = None

    @model_validator(mode="after")
    def _one_of(self) -> BatchRequest:
        if (self.file_ids is None) == (self.files is None):
            raise ValueError("send either file_ids or files")
        return self

    @property
    def each(self) -> dict[str, dict[str, Any]]:
        """Return the options of each file by its id."""
        if self.files is not None:
            return {one.file_id: one.stored for one in self.files}
        return dict.fromkeys(self.file_ids or (), self.stored)


class StoreFields(Fields):
    """Fields of a store that may be set and changed."""

    name: Name | None = None
    metadata: Metadata | None = None
    expires_after: Any = None

    @model_validator(mode="after")
    def _stays(self) -> StoreFields:
        if self.expires_after is not None:
            raise refused("expires_after", "is not supported: stores stay until they are deleted; omit it")
        return self


class CreateStore(StoreFields):
    """Body of POST /v1/vector_stores. `embedding_models` is an extension; the default is the first that is
    served.
    """

    description: Annotated[Text, Field(max_length=512)] | None = None
    file_ids: Annotated[list[Id], Field(max_length=MOST_FILES, fail_fast=True)] = Field(default_factory=list)
    chunking_strategy: Chunking = AutoChunking(type="auto")
    embedding_models: Annotated[list[Id], Field(min_length=1, max_length=4)] | None = None


class Ranking(Fields):
    """OpenAI's rankers re-rank with a model; there is none here."""

    ranker: Literal["none", "auto", "default-2024-11-15"] = "auto"
    score_threshold: float = Field(0.0, ge=0, le=1, allow_inf_nan=False)


def _bounded(part: str | TextPart | ImagePart) -> str | TextPart | ImagePart:
    text = part.text if isinstance(part, TextPart) else part
    if isinstance(text, str) and not 1 <= len(text) <= LONGEST_QUERY:
        raise ValueError(f"it has a text of {len(text)} characters; use 1 to {LONGEST_QUERY}")
    return part


Query = Annotated[Part, AfterValidator(_bounded)]


class SearchRequest(Fields):
    """Body of POST /v1/vector_stores/{id}/search. Extensions: content parts of chat, including pictures, as
    query; `question`, which a vision-language model answers about the one picture, whose answer is then the
    query; and `model`, which chooses that model.
    """

    query: (
        Annotated[Text, Field(min_length=1, max_length=LONGEST_QUERY)]
        | Annotated[list[Query], Field(min_length=1, max_length=MOST_QUERIES, fail_fast=True)]
    )
    question: Annotated[Text, Field(min_length=1, max_length=LONGEST_QUERY)] | None = None
    model: Id | None = None
    filters: Filter | None = None
    max_num_results: int = Field(10, ge=1, le=50, strict=True)
    ranking_options: Ranking = Ranking()
    rewrite_query: bool = False

    @property
    def queries(self) -> list[Item]:
        """Return texts and pictures, each a query of its own.

        Raises:
            ApiError: 400 for a picture that would have to be fetched.
        """
        parts = [self.query] if isinstance(self.query, str) else self.query
        return [content(part, "query", number) for number, part in enumerate(parts)]

    @model_validator(mode="after")
    def _as_it_is(self) -> SearchRequest:
        if self.rewrite_query:
            raise refused("rewrite_query", "must be false: queries are searched for as they are; omit it")
        if self.model is not None and self.question is None:
            raise refused("model", "requires question; send a question, or omit model")
        return self


def upload_fields(fields: Mapping[str, list[str]], filename: str) -> str:
    """Read the purpose of an upload from its form.

    Raises:
        ApiError: 400 with `param`.
    """
    for name in fields:
        if name.startswith("expires_after"):
            raise refused("expires_after", "is not supported: files stay until they are deleted; omit it")
        if name != "purpose":
            raise unknown(name[:80], name[:80])
    purpose = fields.get("purpose", [""])[-1]
    if purpose not in PURPOSES:
        raise refused("purpose", f"is {purpose[:40]!r}; use one of {', '.join(PURPOSES)}")
    if not 1 <= len(filename) <= LONGEST_NAME:
        raise refused("file", f"has a name of {len(filename)} characters; use 1 to {LONGEST_NAME}")
    return purpose
