"""Download files over HTTPS: resume partial downloads, check hashes, and check free space first."""

from __future__ import annotations

import hashlib
import shutil
import sys
from pathlib import Path
from typing import Any

import httpx2
from tqdm import tqdm

BLOCK = 1 << 16

# Where no terminal is, as in a container: whole lines, since a log shows nothing of a line without its end.
LINES: dict[str, Any] = {"bar_format": "{desc}: {n_fmt} of {total_fmt}, {rate_fmt}\n", "mininterval": 10}


class FetchError(Exception):
    """Weights could not be fetched, or do not match the catalog or catalog.lock."""


def require_space(place: Path, wanted: int, what: str) -> None:
    """Check that `wanted` bytes, plus a tenth, are free on the file system of `place`.

    Raises:
        FetchError: there is less.
    """
    while not place.exists():
        place = place.parent
    if (free := shutil.disk_usage(place).free) < 1.1 * wanted:
        raise FetchError(
            f"{what} needs about {1.1 * wanted / 1e9:.1f} GB, {place} has {free / 1e9:.1f} GB free; make "
            "room, or point WEIGHTS_DIR and ENGINES_DIR elsewhere"
        )


def sha256_of(path: Path) -> str:
    """Compute the SHA-256 of a file in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def download(url: str, target: Path, sha256: str) -> None:
    """Download one file. A partial download is resumed; the file is kept only if its hash is right.

    Raises:
        FetchError: the server's answer is not usable, or the finished file has another hash (it is removed).
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(target.name + ".partial")
    have = partial.stat().st_size if partial.exists() else 0
    try:
        with httpx2.stream(
            "GET", url, headers={"Range": f"bytes={have}-"} if have else {}, follow_redirects=True, timeout=30
        ) as answer:
            if answer.status_code != 416:  # 416: the partial file is complete already
                answer.raise_for_status()
                _write(answer, partial, have if answer.status_code == 206 else 0)
    except httpx2.HTTPError as error:
        raise FetchError(f"{url}: {error}; run the build again to continue the download") from error
    found = sha256_of(partial)
    if found != sha256:
        partial.unlink()
        raise FetchError(
            f"{url}: sha256 is {found}, the catalog says {sha256}; the file was removed, run the build again"
        )
    partial.replace(target)


def _write(answer: httpx2.Response, partial: Path, have: int) -> None:
    rest = int(answer.headers.get("content-length", 0))
    require_space(partial, rest, f"downloading {partial.stem}")
    total, style = have + rest, {} if sys.stderr.isatty() else LINES
    with (
        partial.open("ab" if have else "wb") as file,
        tqdm(total=total or None, initial=have, unit="B", unit_scale=True, desc=partial.stem, **style) as bar,
    ):
        for block in answer.iter_bytes(BLOCK):
            file.write(block)
            bar.update(len(block))
