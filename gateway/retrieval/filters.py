"""OpenAI's filters on a file's attributes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, StrictBool, StrictFloat, StrictInt, model_validator

from ..fields import Text

Value = StrictBool | StrictInt | Annotated[StrictFloat, Field(allow_inf_nan=False)] | Text
Attributes = Mapping[str, Any]
DEEPEST = 8
MOST = 64  # filters in one compound, and values in one list times four


class ComparisonFilter(BaseModel, extra="forbid"):
    """Compares one attribute with a value, or (`in`, `nin`) with several."""

    type: Literal["eq", "ne", "gt", "gte", "lt", "lte", "in", "nin"]
    key: Text = Field(min_length=1, max_length=64)
    value: Value | Annotated[list[Value], Field(max_length=4 * MOST)]

    @model_validator(mode="after")
    def _fits(self) -> ComparisonFilter:
        if (self.type in ("in", "nin")) != isinstance(self.value, list):
            wanted = "a list" if self.type in ("in", "nin") else "one value"
            raise ValueError(f"{self.type!r} compares with {wanted}")
        if self.type in ("gt", "gte", "lt", "lte") and isinstance(self.value, bool):
            raise ValueError(f"{self.type!r} compares numbers or strings")
        return self

    def accepts(self, attributes: Attributes) -> bool:
        """Tell whether attributes match. A missing attribute is not equal to anything, and neither less nor
        greater.
        """
        found = attributes.get(self.key)
        if self.type in ("ne", "nin"):
            return not any(same(found, one) for one in self.values)
        if self.type in ("eq", "in"):
            return any(same(found, one) for one in self.values)
        return found is not None and ordered(self.type, found, self.value)

    @property
    def values(self) -> list[Any]:
        """Return the values to compare with as a list."""
        return self.value if isinstance(self.value, list) else [self.value]


class Compound(BaseModel, extra="forbid"):
    """All (`and`) or one (`or`) of several filters."""

    type: Literal["and", "or"]
    filters: Annotated[list[Filter], Field(min_length=1, max_length=MOST, fail_fast=True)]

    @model_validator(mode="before")
    @classmethod
    def _shallow(cls, data: Any) -> Any:
        """Check the depth of nested filters before pydantic descends."""
        if depth(data) > DEEPEST:
            raise ValueError(f"filters are nested more than {DEEPEST} deep")
        return data

    def accepts(self, attributes: Attributes) -> bool:
        found = (one.accepts(attributes) for one in self.filters)
        return all(found) if self.type == "and" else any(found)


Filter = Annotated[ComparisonFilter | Compound, Field(discriminator="type")]


def depth(data: Any, limit: int = DEEPEST + 1) -> int:
    """Return how deep filters are nested, up to `limit`."""
    inner = data.get("filters") if isinstance(data, dict) else None
    if not isinstance(inner, list) or limit == 0:
        return 1
    return 1 + max((depth(one, limit - 1) for one in inner[: MOST + 1]), default=0)


def same(found: Any, value: Any) -> bool:
    """Tell whether values are equal and of the same kind: true is not 1."""
    return found is not None and isinstance(found, bool) == isinstance(value, bool) and found == value


def ordered(kind: str, found: Any, value: Any) -> bool:
    """Compare `found` with `value` by order; numbers and strings are not comparable with each other."""
    if isinstance(found, bool) or isinstance(found, str) != isinstance(value, str):
        return False
    return bool(
        {"gt": found > value, "gte": found >= value, "lt": found < value, "lte": found <= value}[kind]
    )
