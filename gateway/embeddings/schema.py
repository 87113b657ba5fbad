"""The body of /v1/embeddings as a typed request."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, Discriminator, Field, Tag

from conch.deployment import Pool
from conch.errors import ApiError, refused
from conch.pictures import Picture

from ..fields import Fields, Only, Text
from ..text.schema import TextPart, Texts
from ..vision.parts import ImagePart, of_url

MOST_INPUTS = 2048  # OpenAI's limit
Item = str | list[int] | Picture
Token = Annotated[int, Field(ge=0, lt=2**31, strict=True)]
Ids = Annotated[list[Token], Field(fail_fast=True)]


def _kind(given: Any) -> str | None:
    """Determine the form of an input by its first item, so that errors are about that form."""
    if isinstance(given, str):
        return "one text"
    if not isinstance(given, list):
        return None
    if any(isinstance(item, dict | BaseModel) for item in given):
        return "parts list"
    first = given[0] if given else ""
    if isinstance(first, list):
        return "ids list"
    return "one list of ids" if isinstance(first, int) else "texts list"


def _part(given: Any) -> str | None:
    if not isinstance(given, dict):
        return "picture part" if isinstance(given, ImagePart) else "plain text"
    return {"text": "text part", "image_url": "picture part"}.get(str(given.get("type")))


# Tags have blanks, so that they are not taken for names of fields.
Part = Annotated[
    Annotated[Text, Tag("plain text")]
    | Annotated[TextPart, Tag("text part")]
    | Annotated[ImagePart, Tag("picture part")],
    Discriminator(
        _part,
        custom_error_type="part",
        custom_error_message="Input should be a text, or an object whose type is text or image_url",
    ),
]
Input = Annotated[
    Annotated[Text, Tag("one text")]
    | Annotated[Texts, Tag("texts list")]
    | Annotated[Ids, Tag("one list of ids")]
    | Annotated[list[Ids], Field(fail_fast=True), Tag("ids list")]
    | Annotated[list[Part], Field(fail_fast=True), Tag("parts list")],
    Discriminator(_kind, custom_error_type="input", custom_error_message="Input should be a text or a list"),
]


class EmbeddingsRequest(Fields):
    """Body of /v1/embeddings. Extensions: with `truncate`, what is too long is cut instead of refused; an
    input may consist of parts (texts and pictures); `token_ids` must be set for ids of the model's own
    tokenizer, without special tokens, since clients otherwise send ids of OpenAI's tokenizers, which would be
    other words here.
    """

    HARMLESS: ClassVar = frozenset({"input_type", "priority", "user"})
    NEUTRAL: ClassVar = {
        "modality": Only(("text",), "must be text; send pictures as parts"),
        "normalize": Only((True,), "must be true: vectors here have a length of 1; omit it"),
        "prompt_name": Only((), "is not supported; put the prompt before the text"),
    }

    model: str
    input: Input
    dimensions: int | None = Field(None, ge=1)
    encoding_format: Literal["float", "base64"] = "float"
    truncate: bool | Literal["NONE", "END"] | None = None
    token_ids: Literal["model"] | None = None

    @property
    def items(self) -> list[Item]:
        """Return the inputs, one for each vector.

        Raises:
            ApiError: 400 for a picture that would have to be fetched.
        """
        if isinstance(self.input, str):
            return [self.input]
        if self.input and isinstance(self.input[0], int):
            return [[token for token in self.input if isinstance(token, int)]]
        return [
            item if isinstance(item, list) else content(item, "input", number)
            for number, item in enumerate(self.input)
            if not isinstance(item, int)
        ]


def content(part: str | TextPart | ImagePart, param: str, number: int) -> str | Picture:
    """Return the text or picture of a part of the field `param`.

    Raises:
        ApiError: 400 for a picture that would have to be fetched.
    """
    if isinstance(part, str):
        return part
    return part.text if isinstance(part, TextPart) else of_url(part.image_url.url, param, f"[{number}]")


def check(form: EmbeddingsRequest, items: Sequence[Item], pool: Pool) -> None:
    """Check what needs no tokenizer.

    Raises:
        ApiError: 400 with `param`.
    """
    if not items or not all(items):
        empty = next((f"[{n}]" for n, item in enumerate(items) if not item), "")
        raise refused("input", f"{empty} is empty; send text, token ids or pictures".lstrip())
    if form.token_ids is None and any(isinstance(item, list) for item in items):
        raise refused(
            "input",
            f"has token ids, which clients make with OpenAI's tokenizers and {pool.model_id} would read as "
            "other words; send text (LangChain: check_embedding_ctx_length=False), or ids of its own "
            'tokenizer with token_ids="model"',
        )
    if len(items) > MOST_INPUTS:
        raise refused("input", f"has {len(items)} items; send at most {MOST_INPUTS}")
    if not pool.embeds_pictures:
        picture = next((n for n, item in enumerate(items) if isinstance(item, Picture)), None)
        if picture is not None:
            raise refused("input", f"[{picture}] is a picture; {pool.model_id} takes text only; send text")
    if form.dimensions not in (None, pool.dimensions):
        raise refused(
            "dimensions",
            f"is {form.dimensions}; vectors of {pool.model_id} have {pool.dimensions}, which cannot be cut; "
            "omit it",
        )


def too_long(number: int, length: int, pool: Pool) -> ApiError:
    """Make the error for one input."""
    return refused(
        "input",
        f"[{number}] has {length} tokens; {pool.model_id} reads {pool.positions} at most; shorten it, or "
        "send truncate=true",
    )
