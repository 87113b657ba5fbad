"""The body of /v1/embeddings as a typed request."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from conch.deployment import Pool

from ..errors import ApiError
from ..text.schema import Lenient, Text, Texts, refused

MOST_INPUTS = 2048  # OpenAI's limit
Item = str | list[int]
Token = Annotated[int, Field(ge=0, lt=2**31, strict=True)]
Ids = Annotated[list[Token], Field(fail_fast=True)]


class EmbeddingsRequest(Lenient):
    """Body of /v1/embeddings. `truncate` is an extension: what is too long is cut instead of refused. Token
    ids are the model's own, without special tokens.
    """

    model: str
    input: Text | Texts | Ids | Annotated[list[Ids], Field(fail_fast=True)]
    dimensions: int | None = Field(None, ge=1)
    encoding_format: Literal["float", "base64"] = "float"
    truncate: bool = False
    user: str | None = None

    @property
    def items(self) -> list[Item]:
        """The inputs, one vector each."""
        if isinstance(self.input, str):
            return [self.input]
        if self.input and isinstance(self.input[0], int):
            return [[token for token in self.input if isinstance(token, int)]]
        return [item for item in self.input if not isinstance(item, int)]


def check(form: EmbeddingsRequest, pool: Pool) -> None:
    """What needs no tokenizer.

    Raises:
        ApiError: 400 with `param`.
    """
    if not form.items or not all(form.items):
        empty = next((f"[{n}]" for n, item in enumerate(form.items) if not item), "")
        raise refused("input", f"{empty} is empty; send text or token ids".lstrip())
    if len(form.items) > MOST_INPUTS:
        raise refused("input", f"has {len(form.items)} items; send {MOST_INPUTS} at most")
    if form.dimensions not in (None, pool.dimensions):
        raise refused(
            "dimensions",
            f"is {form.dimensions}; vectors of {pool.model_id} have {pool.dimensions}, which cannot be cut; "
            "leave it out",
        )


def too_long(number: int, length: int, pool: Pool) -> ApiError:
    """The refusal of one input."""
    return refused(
        "input",
        f"[{number}] has {length} tokens; {pool.model_id} reads {pool.positions} at most; shorten it, or "
        "send truncate=true",
    )
