"""Files that one package writes and another reads: JSON on disk, frozen dataclasses in Python.

A contract is a frozen dataclass. Its fields are str, int, float, bool, `Mapping[str, Any]`, tuples or
frozensets of these, other contracts, or any of these or None. Reading checks every field against its
annotation.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import MISSING, asdict, fields, is_dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, ClassVar, Self, TypeVar, Union, get_args, get_origin, get_type_hints

T = TypeVar("T")
SIMPLE = {str: "a string", int: "an integer", float: "a number", bool: "true or false"}


class Malformed(ValueError):
    """A file does not match its contract; the message names the file and the field."""


def load(kind: type[T], path: Path) -> T:
    """Read a contract.

    Raises:
        Malformed: no such file, not JSON, or a field that is missing, unknown or of another type.
    """
    try:
        text = path.read_text("utf-8")
    except FileNotFoundError:
        raise Malformed(f"{path} does not exist") from None
    return parse(kind, text, str(path))


def parse(kind: type[T], text: str, name: str) -> T:
    """Read a contract from text, which messages call `name`.

    Raises:
        Malformed: see `load`.
    """
    try:
        data = json.loads(text)
    except json.JSONDecodeError as error:
        raise Malformed(f"{name} is not valid JSON: {error}") from None
    found: T = _contract(kind, data, name)
    return found


def save(contract: Any, path: Path) -> None:
    """Write a contract atomically. A file that has other hard links is replaced, not changed.

    Raises:
        Malformed: it holds what could not be read again.
    """
    text = json.dumps(asdict(contract), indent=2, default=sorted) + "\n"
    parse(type(contract), text, str(path))
    partial = path.with_name(f"{path.name}.partial")
    partial.write_text(text, "utf-8")
    partial.replace(path)


class Stored:
    """A contract with a file of its own, `FILE`, in a folder."""

    FILE: ClassVar[str]

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Read it from a folder.

        Raises:
            Malformed: see `load`.
        """
        return load(cls, folder / cls.FILE)

    def save(self, folder: Path) -> None:
        """Write it into a folder."""
        save(self, folder / self.FILE)


def _contract(kind: Any, value: Any, where: str) -> Any:
    data = _object(value, where)
    hints, known = get_type_hints(kind), {field.name: field for field in fields(kind)}
    if unknown := data.keys() - known.keys():
        raise Malformed(f"{where}: field {min(unknown)!r} is unknown; it was written by another version")
    for name, field in known.items():
        if name not in data and field.default is MISSING and field.default_factory is MISSING:
            raise Malformed(f"{where}: field {name!r} is missing; it was written by another version")
    return kind(**{name: _value(hints[name], value, f"{where}: {name}") for name, value in data.items()})


def _value(kind: Any, value: Any, where: str) -> Any:
    origin, inner = get_origin(kind), get_args(kind)
    if kind is Any:
        return value
    if origin in (Union, UnionType):
        rest = [one for one in inner if one is not NoneType]
        return None if value is None else _value(rest[0], value, where)
    if origin in (tuple, frozenset):
        return origin(_value(inner[0], one, f"{where}[{i}]") for i, one in enumerate(_list(value, where)))
    if origin is Mapping:
        return {key: _value(inner[1], one, f"{where}.{key}") for key, one in _object(value, where).items()}
    return _contract(kind, value, where) if is_dataclass(kind) else _simple(kind, value, where)


def _simple(kind: Any, value: Any, where: str) -> Any:
    if type(value) is kind:
        return value
    if kind is float and type(value) is int:
        return float(value)
    raise Malformed(f"{where} must be {SIMPLE[kind]}, not {value!r}")


def _list(value: Any, where: str) -> list[Any]:
    if not isinstance(value, list):
        raise Malformed(f"{where} must be a list")
    return value


def _object(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise Malformed(f"{where} must be an object")
    return value
