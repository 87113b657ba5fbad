"""Say in a sentence what pydantic finds wrong with a value."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

SHOULD = "Input should be "  # how pydantic begins to say what it expects


def explained(rows: Sequence[Mapping[str, Any]]) -> str:
    """Explain pydantic's findings about one field, to follow its name: what it must be, by each type that it
    could have, and what it is.
    """
    found = telling(rows)
    if found[0]["type"] == "missing":
        return " is missing; send it"
    sentences = dict.fromkeys(_sentence(row) for row in found)
    if not all(text.startswith(SHOULD) for text in sentences):
        return "; ".join(text if text.startswith(" ") else f": {text}" for text in sentences)
    given = found[0]["input"]
    shown = (
        "a list"
        if isinstance(given, list)
        else "an object"
        if isinstance(given, dict)
        else json.dumps(given, default=str)[:80]
    )
    return f" must be {' or '.join(text.removeprefix(SHOULD) for text in sentences)}, not {shown}"


SENTENCES = {
    "too_long": " has {actual_length} items; send {max_length} at most",
    "too_short": " has {actual_length} items; send at least {min_length}",
    "string_too_long": " has {length} characters; send {max_length} at most",
    "string_too_short": " has {length} characters; send at least {min_length}",
    "union_tag_invalid": " has the type {tag!r}; send one of {expected_tags}",
    "union_tag_not_found": " has no type; send an object with one",
    "model_attributes_type": SHOULD + "an object",
    "dict_type": SHOULD + "an object",
}


def _sentence(row: Mapping[str, Any]) -> str:
    """Turn one finding into Conch's words; pydantic's others begin with SHOULD."""
    if own := SENTENCES.get(row["type"]):
        length = len(row["input"]) if isinstance(row["input"], str) else 0
        return own.format(**row.get("ctx", {}), length=length)
    return str(row["msg"]).removeprefix("Value error, ").partition(", unable to")[0]


def telling(rows: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
    """Choose among findings for a value that could have several types: what is wrong inside the type that it
    has, or else that it has none of them.
    """
    outermost = min(len(row["loc"]) for row in rows)
    values = [row for row in rows if not row["type"].endswith(("_type", "_parsing"))]
    items = [row for row in rows if len(row["loc"]) > outermost]
    if values and values[0]["type"] == "literal_error":
        # It may only show that the value is not of this type but of another one.
        place = values[0]["loc"][:-1]
        others = [row for row in values if row["type"] != "literal_error" and row["loc"][:-1] != place]
        values = others or values
    return values[:1] or items[:1] or rows


Path = tuple[int | str, ...]


def path(row: Mapping[str, Any], value: Any) -> Path:
    """Return where in the client's own `value` a finding lies: pydantic's path without the types that it
    tried on the way.
    """
    if row["type"] == "missing":
        return (*_inside(row["loc"][:-1], value), *row["loc"][-1:])
    return _inside(row["loc"], value)


def _inside(loc: Path, value: Any) -> Path:
    """Return those parts of `loc` that lead into `value`. The name of a type may be a field's, too; what
    leads to the last part is right.
    """
    if not loc:
        return ()
    part, rest = loc[0], loc[1:]
    skipped = _inside(rest, value)
    if not (part < len(value) if isinstance(value, list) and isinstance(part, int) else _has(value, part)):
        return skipped
    return max((part, *_inside(rest, value[part])), skipped, key=lambda one: (one[-1:] == loc[-1:], len(one)))


def _has(value: Any, part: int | str) -> bool:
    return isinstance(value, dict) and part in value


def written(path: Path) -> str:
    """Write a path as `messages[0].content`."""
    parts = [f"[{part}]" if isinstance(part, int) else f".{part[:80]}" for part in path]
    return "".join(parts).removeprefix(".")
