"""Descriptions of request fields in OpenAPI: descriptions.toml."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from fastapi import FastAPI

FIELDS: dict[str, str] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))


class Described(FastAPI):
    """An application whose OpenAPI document has a description for each field."""

    def openapi(self) -> dict[str, Any]:
        """Return the document."""
        if not self.openapi_schema:
            describe(super().openapi())
        return super().openapi()


def describe(schema: Any) -> None:
    """Add descriptions, in place, to the fields of an OpenAPI document that have none."""
    if isinstance(schema, list):
        for one in schema:
            describe(one)
    elif isinstance(schema, dict):
        for name, row in schema.get("properties", {}).items():
            field = name.removesuffix("[]")
            text = FIELDS.get(f"{schema.get('title')}.{field}") or FIELDS.get(field)
            if isinstance(row, dict) and text:
                row.setdefault("description", text)
        if "in" in schema and (text := FIELDS.get(schema.get("name", ""))):
            schema.setdefault("description", text)
        for one in schema.values():
            describe(one)
