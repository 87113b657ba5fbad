"""GET /docs: the HTTP API from its OpenAPI document, as a page without scripts. /openapi.json is for code."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from fastapi import APIRouter, Request, Response
from jinja2 import Environment

from ..fields import IGNORED
from .page import HEADERS

router = APIRouter(include_in_schema=False)
TEMPLATE = Path(__file__).parent / "reference.html"


@router.get("/docs")
async def reference(request: Request) -> Response:
    """Return the page."""
    page = Environment(autoescape=True).from_string(TEMPLATE.read_text("utf-8"))
    body = page.render(routes=list(described(request.app.openapi())))
    return Response(body, media_type="text/html; charset=utf-8", headers=HEADERS)


def described(document: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield each route of an OpenAPI document: method, path, summary, fields of address and body."""
    schemas = document.get("components", {}).get("schemas", {})
    for path, methods in document["paths"].items():
        for method, row in methods.items():
            asked = row.get("parameters", ())
            fields = [
                _field(
                    one["name"],
                    {**one["schema"], "description": one.get("description", "")},
                    one.get("required"),
                )
                for one in asked
            ]
            for content in row.get("requestBody", {}).get("content", {}).values():
                schema = _resolved(content.get("schema", {}), schemas)
                rows, needed = schema.get("properties", {}), schema.get("required", ())
                fields += [
                    _field(name, one, name in needed) for name, one in rows.items() if IGNORED not in one
                ]
            summary = row.get("description") or row.get("summary", "")
            yield {"method": method.upper(), "path": path, "summary": summary, "fields": fields}


def _resolved(schema: Mapping[str, Any], schemas: Mapping[str, Any]) -> Mapping[str, Any]:
    name = str(schema.get("$ref", "")).rpartition("/")[2]
    found: Mapping[str, Any] = schemas.get(name, {}) if name else schema
    return found


def _field(name: str, schema: Mapping[str, Any], required: object) -> dict[str, Any]:
    default = "" if schema.get("default") in (None, [], {}) else json.dumps(schema["default"])
    return {
        "name": name,
        "type": _type(schema),
        "default": "required" if required else default.strip('"'),
        "note": schema.get("description", ""),
    }


def _type(schema: Mapping[str, Any]) -> str:
    if choices := schema.get("anyOf") or schema.get("oneOf"):
        return " or ".join(dict.fromkeys(_type(one) for one in choices if one.get("type") != "null"))
    if "enum" in schema or "const" in schema:
        return ", ".join(map(str, schema.get("enum", [schema.get("const")])))
    if "$ref" in schema:
        return str(schema["$ref"]).rpartition("/")[2]
    kind = str(schema.get("type", "any"))
    return f"list of {_type(schema.get('items', {}))}" if kind == "array" else kind
