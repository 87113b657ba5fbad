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
        document = super().openapi()
        if "Error" not in document.setdefault("components", {}).setdefault("schemas", {}):
            describe(document)
            _add_errors(document)
        return document


def _add_errors(document: dict[str, Any]) -> None:
    """Replace FastAPI's 422 by the errors that routes have, and add the keys that they may need."""
    text, schemas = {"type": ["string", "null"]}, document["components"]["schemas"]
    for name in ("HTTPValidationError", "ValidationError"):
        schemas.pop(name, None)
    fields = {"message": {"type": "string"}, "type": {"type": "string"}, "param": text, "code": text}
    error = {"type": "object", "properties": fields, "required": list(fields)}
    schemas["Error"] = {"type": "object", "properties": {"error": error}, "required": ["error"]}
    shape = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
    told = {"description": "error", "content": shape}
    for methods in document["paths"].values():
        for row in methods.values():
            row["responses"].pop("422", None)
            row["responses"] |= {"4XX": told, "5XX": told}
    document["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
    document["security"] = [{}, {"key": []}]


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
