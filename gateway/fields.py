"""Which fields a request may have: one policy for all routes (docs/serve.md, "Fields").

A field is one of a route's own; or HARMLESS (it cannot change the answer: accepted and ignored); or NEUTRAL
(accepted if it asks for the default behaviour; any other value is a 400 with the reason); or unknown, which
is a 400. null means that a field was left out.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from pydantic import AfterValidator, BaseModel, GetJsonSchemaHandler, model_validator
from pydantic_core import CoreSchema

from conch.errors import refused

NULL = {"type": "null"}
IGNORED = "x-ignored"  # marks fields in OpenAPI that change no answer
MOST_FIELDS = 64
MOST_LEVELS = 64  # of a JSON object inside a body, such as a schema
MOST_PARTS = 4096  # of a list or an object in a body: messages, words, biases


@dataclass(frozen=True)
class Only:
    """The values that ask for the default behaviour, and the error for any other: it follows the field's
    name; {model} is the requested model.
    """

    values: tuple[Any, ...]
    reason: str


def _bounded(data: Mapping[str, Any]) -> None:
    """Refuse a body with so many parts that checking them would delay other requests."""
    if len(data) > MOST_FIELDS:
        raise ValueError(f"the body has {len(data)} fields; send {MOST_FIELDS} at most")
    for name, value in data.items():
        if isinstance(value, dict | list) and len(value) > MOST_PARTS and name != "prompt":
            raise ValueError(f"{name[:80]} has {len(value)} parts; send {MOST_PARTS} at most")


def kept(
    data: Mapping[str, Any], harmless: frozenset[str], neutral: Mapping[str, Only], model: str = "this model"
) -> dict[str, Any]:
    """Return the fields that have a meaning here.

    Raises:
        ApiError: 400 that names a field which asks for what is not supported.
    """
    found = {}
    for name, value in data.items():
        if value is None or name in harmless:
            continue
        if (only := neutral.get(name)) is None:
            found[name] = value
        elif value not in only.values:
            raise refused(name, only.reason.format(model=model))
    return found


def _encodable(text: str) -> str:
    """Refuse half a surrogate pair, which JSON can write but UTF-8 cannot."""
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise ValueError("it contains an unpaired surrogate; send valid Unicode")
    return text


def _sound(value: Any) -> Any:
    """Check that JSON can be serialized again: not too deep, and valid Unicode."""
    level = [value]
    for _ in range(MOST_LEVELS):
        level = [part for one in level for part in _parts(one)]
        if not level:
            _encodable(json.dumps(value, ensure_ascii=False))
            return value
    raise ValueError(f"it is nested deeper than {MOST_LEVELS} levels; send a flatter one")


def _parts(value: Any) -> Iterable[Any]:
    return value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()


Text = Annotated[str, AfterValidator(_encodable)]
Json = Annotated[dict[str, Any], AfterValidator(_sound)]


class Fields(BaseModel, extra="forbid"):
    """A JSON object of a request."""

    HARMLESS: ClassVar[frozenset[str]] = frozenset()
    NEUTRAL: ClassVar[Mapping[str, Only]] = {}
    OFF: ClassVar[frozenset[str]] = frozenset()  # fields that null switches off

    @classmethod
    def __get_pydantic_json_schema__(cls, core: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        """Describe what is accepted besides the fields: those that are ignored, and null for what is left
        out.
        """
        schema = handler.resolve_ref_schema(handler(core))
        needed, rows = schema.get("required", ()), schema.setdefault("properties", {})
        for name, row in rows.items():
            if name not in needed and NULL not in row.get("anyOf", ()):
                kept_there = {key: row.pop(key) for key in ("title", "description", "default") if key in row}
                rows[name] = {"anyOf": row.get("anyOf") or [row], **kept_there}
                rows[name]["anyOf"].append(NULL)
        for name in sorted(cls.HARMLESS):
            rows.setdefault(name, {IGNORED: True})
        for name, only in sorted(cls.NEUTRAL.items()):
            rows.setdefault(name, {"enum": [*only.values, None], IGNORED: True})
        return schema

    @model_validator(mode="before")
    @classmethod
    def _given(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        _bounded(data)
        model = data.get("model")
        found = kept(data, cls.HARMLESS, cls.NEUTRAL, model[:80] if isinstance(model, str) else "this model")
        return {**found, **{name: None for name in cls.OFF if name in data and data[name] is None}}
