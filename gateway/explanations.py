"""Say in a sentence what pydantic finds wrong with a value."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from conch.errors import ApiError, invalid

SHOULD = "Input should be "  # how pydantic begins to say what it expects


Row = Mapping[str, Any]  # a finding of pydantic's
Path = tuple[int | str, ...]


@dataclass(frozen=True)
class Fault:
    """What is wrong with a body: findings about one value, and that value's place."""

    rows: Sequence[Row]
    path: Path

    @property
    def place(self) -> str:
        """Return the path as `messages[0].content`."""
        parts = [f"[{part}]" if isinstance(part, int) else f".{part[:80]}" for part in self.path]
        return "".join(parts).removeprefix(".")

    def error(self, param: str | None) -> ApiError:
        """Return the 400 that says so. `param`: the field to name with a wrong value; an unknown field is
        named itself.
        """
        if self.rows[0]["type"] == "extra_forbidden":
            message = f"unknown field {self.place!r}; remove it"
            return ApiError(400, message, param=self.place, code="unknown_parameter")
        return invalid(param, f"{self.place or 'the body'}{explained(self.rows)}")


def fault(rows: Sequence[Row], value: Any) -> Fault:
    """Choose the fault to tell among pydantic's findings about `value`: the first one, and where a value may
    be of several types, the one inside the type that it has.
    """
    chosen = _chosen(rows, value, 0)
    return Fault(chosen, _path(chosen[0], value))


def explained(rows: Sequence[Row]) -> str:
    """Explain findings about one value, to follow its name: what it must be, by each type that it could have,
    and what it is.
    """
    if rows[0]["type"] == "missing":
        return " is missing; send it"
    sentences = dict.fromkeys(_sentence(row) for row in rows)
    if not all(text.startswith(SHOULD) for text in sentences):
        return "; ".join(text if text.startswith(" ") else f": {text}" for text in sentences)
    given = rows[0]["input"]
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
    "string_pattern_mismatch": " does not match the pattern {pattern}",
    "string_unicode": " contains an unpaired surrogate; send valid Unicode",
    **dict.fromkeys(("model_type", "model_attributes_type", "dict_type"), SHOULD + "an object"),
    "tuple_type": SHOULD + "a valid list",
}


def _sentence(row: Mapping[str, Any]) -> str:
    """Turn one finding into Conch's words; pydantic's others begin with SHOULD."""
    kind, given = row["type"], row["input"]
    if isinstance(given, str) and kind.startswith("too_"):  # a text with a validator of ours
        kind = f"string_{kind}"
    if own := SENTENCES.get(kind):
        length = len(given) if isinstance(given, str) else 0
        return own.format(**row.get("ctx", {}), length=length)
    return str(row["msg"]).removeprefix("Value error, ").partition(", unable to")[0]


# How well a value fits a type that pydantic tried: not even the kind of value; another tag or literal; it is
# of this type, and something in it is wrong.
OTHER, TAGGED, FITS = range(3)


def _chosen(rows: Sequence[Row], value: Any, depth: int) -> Sequence[Row]:
    """Choose among findings whose paths are the same up to `depth`, where they have reached `value`."""
    if here := [row for row in rows if len(row["loc"]) == depth]:
        return here
    groups: dict[int | str, list[Row]] = {}
    for row in rows:
        groups.setdefault(row["loc"][depth], []).append(row)
    label, group = next(iter(groups.items()))
    if len(groups) == 1 or any(_is_field(one, rows, value, depth) for one in groups):
        return _chosen(group, _entered(value, label, group, depth), depth + 1)
    fits = [_fit(one, value, depth + 1) for one in groups.values()]
    tried = [one for one, fit in zip(groups.values(), fits, strict=True) if fit == max(fits)]
    if max(fits) == FITS:
        return _chosen(max(tried, key=lambda one: len(one[0]["loc"])), value, depth + 1)
    told = [row for one in tried for row in one if row["type"] == "literal_error" or max(fits) == OTHER]
    nearest = min(len(row["loc"]) for row in told)
    return [row for row in told if len(row["loc"]) == nearest]


def _fit(rows: Sequence[Row], value: Any, depth: int) -> int:
    """Tell how well `value` fits a type, by the findings about it."""
    whole = next((row["type"] for row in rows if len(row["loc"]) == depth), "")
    if whole == "literal_error":
        return OTHER if isinstance(value, dict | list) else TAGGED
    if whole.endswith(("_type", "_parsing")):
        return OTHER
    tags = [row for row in rows if len(row["loc"]) == depth + 1 and row["type"] == "literal_error"]
    return TAGGED if tags else FITS


def _is_field(label: int | str, rows: Sequence[Row], value: Any, depth: int) -> bool:
    """Tell whether a label is a field or an index, and not the name of a type."""
    loc = (*rows[0]["loc"][:depth], label)
    return _has(value, label) or any(row["loc"] == loc and row["type"] == "missing" for row in rows)


def _entered(value: Any, label: int | str, rows: Sequence[Row], depth: int) -> Any:
    """Follow a label into `value`, unless it is a type's name or tag."""
    following = [row["loc"][depth + 1] for row in rows if len(row["loc"]) > depth + 1]
    if not _has(value, label) or (_is_tag(value, label) and any(_has(value, one) for one in following)):
        return value
    return value[label]


def _is_tag(value: Any, label: int | str) -> bool:
    return isinstance(value, dict) and value.get("type") == label


def _has(value: Any, label: int | str) -> bool:
    return label in value if isinstance(value, dict) else isinstance(value, list) and isinstance(label, int)


def _path(row: Row, value: Any) -> Path:
    """Return where in `value` a finding lies: pydantic's path without the types that it tried on the way."""
    loc = row["loc"]
    if row["type"] != "missing":
        found = list(_ways(loc, value))
        return next((way for way, reached in found if reached is row["input"]), found[0][0])
    ways = list(_ways(loc[:-1], value))
    lacking = (way for way, reached in ways if isinstance(reached, dict) and reached.get(loc[-1]) is None)
    return (*next(lacking, ways[0][0]), *loc[-1:])


def _ways(loc: Path, value: Any) -> Iterator[tuple[Path, Any]]:
    """Yield paths into `value` that leave out parts of `loc`, and what they lead to; there are several where
    a tag is a field's name, too.
    """
    if not loc:
        yield (), value
        return
    if _has(value, loc[0]):
        yield from (((loc[0], *way), reached) for way, reached in _ways(loc[1:], value[loc[0]]))
        if not _is_tag(value, loc[0]):
            return
    yield from _ways(loc[1:], value)
