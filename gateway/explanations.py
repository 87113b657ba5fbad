"""Say in a sentence what pydantic finds wrong with a value."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from conch.errors import ApiError, invalid, unknown

SHOULD = "Input should be "  # how pydantic begins to say what it expects
KINDS: dict[type, str] = {list: "a list", dict: "an object"}

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

    def error(self, param: str | None, place: str = "") -> ApiError:
        """Return the 400 that says so. `param`: the field to name with a wrong value; an unknown field of a
        JSON body is named itself. `place`: as a form writes it.
        """
        shown = place or self.place
        if self.rows[0]["type"] == "extra_forbidden":
            return unknown(param if place else shown, shown)
        return invalid(param, f"{shown or 'the body'}{explained(self.rows)}")


def fault(rows: Sequence[Row], value: Any) -> Fault:
    """Choose the fault to tell among pydantic's findings about `value`: the first one, and where a value may
    be of several types, the one inside the type that it has.
    """
    rows = [row for row in rows if not _counted_without_faulty(row)]
    broken = [row for row in rows if row["type"] == "string_unicode"]  # perhaps of a key, which has no place
    chosen = broken[:1] or _chosen(rows, value, 0)
    return Fault(chosen, _path(chosen[0], value))


def _counted_without_faulty(row: Row) -> bool:
    """Tell whether a list is too short only because pydantic left out an item that it found wrong."""
    return row["type"] == "too_short" and bool(len(row["input"]) >= row["ctx"]["min_length"])


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
    shown = KINDS.get(type(given)) or json.dumps(given, default=str)[:80]
    return f" must be {' or '.join(text.removeprefix(SHOULD) for text in sentences)}, not {shown}"


SENTENCES = {
    "too_long": " has {actual_length} items; send {max_length} at most",
    "too_short": " has {actual_length} items; send at least {min_length}",
    "string_too_long": " has {length} characters; send {max_length} at most",
    "string_too_short": " has {length} characters; send at least {min_length}",
    "union_tag_invalid": " has the type {tag!r:.80}; send one of {expected_tags}",
    "union_tag_not_found": " has no type; send an object with one",
    "string_pattern_mismatch": " does not match the pattern {pattern}",
    "string_unicode": " contains an unpaired surrogate; send valid Unicode",
    **dict.fromkeys(("int_parsing_size", "int_from_float"), SHOULD + "a valid integer"),
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
    if len(groups) == 1 or any(_is_field(one, found, value, depth) for one, found in groups.items()):
        return _chosen(group, _entered(value, label, group, depth), depth + 1)
    fits = [_fit(one, value, depth + 1) for one in groups.values()]
    best = max(fits)
    tried = [one for one, fit in zip(groups.values(), fits, strict=True) if fit == best]
    if best == FITS:
        return _chosen(max(tried, key=lambda one: len(one[0]["loc"])), value, depth + 1)
    told = [row for one in tried for row in one if row["type"] == "literal_error" or best == OTHER]
    nearest = min(len(row["loc"]) for row in told)
    return [row for row in told if len(row["loc"]) == nearest]


def _fit(rows: Sequence[Row], value: Any, depth: int) -> int:
    """Tell how well `value` fits a type, by the findings about it."""
    whole = next((row["type"] for row in rows if len(row["loc"]) == depth), "")
    if whole == "literal_error":
        return TAGGED if isinstance(value, str) else OTHER
    if whole.endswith(("_type", "_parsing")):
        return OTHER
    tags = [row for row in rows if len(row["loc"]) == depth + 1 and row["type"] == "literal_error"]
    return TAGGED if tags else FITS


def _is_field(label: int | str, rows: Sequence[Row], value: Any, depth: int) -> bool:
    """Tell whether the label of these findings is a field or an index, and not the name of a type."""
    missing = any(row["type"] == "missing" and len(row["loc"]) == depth + 1 for row in rows)
    return missing or _has(value, label)


def _entered(value: Any, label: int | str, rows: Sequence[Row], depth: int) -> Any:
    """Follow a label into `value`, unless it is a type's name or tag."""
    following = [row["loc"][depth + 1] for row in rows if len(row["loc"]) > depth + 1]
    if not _has(value, label) or (_is_tag(value, label) and any(_has(value, one) for one in following)):
        return value
    return value[label]


def _is_tag(value: Any, label: int | str) -> bool:
    """Tell whether a label can be a type's tag, which an object need not have."""
    return isinstance(value, dict) and value.get("type", label) == label


def _has(value: Any, label: int | str) -> bool:
    if isinstance(value, list):
        return isinstance(label, int) and label < len(value)
    return isinstance(value, dict) and label in value


def _path(row: Row, value: Any) -> Path:
    """Return where in `value` a finding lies: pydantic's path without the types that it tried on the way."""
    loc, given = row["loc"], row["input"]
    if row["type"] == "missing":
        ways = list(_ways(loc[:-1], value))
        lacking = [way for way, found in ways if isinstance(found, dict) and found.get(loc[-1]) is None]
        return (*max(lacking or [ways[0][0]], key=len), *loc[-1:])
    # Where a tag is a field's name, too: the way to the last label, if that is a field, and to the value.
    ways = sorted(
        _ways(loc, value), key=lambda one: (one[0][-1:] != loc[-1:], one[1] is not given, one[1] != given)
    )
    return ways[0][0]


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
