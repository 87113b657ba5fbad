"""Files of API keys."""

from __future__ import annotations

from pathlib import Path


class NoKeys(Exception):
    """Keys are required, but there are none; the message names the file."""


def load_keys(path: Path | None, *, required: bool = False) -> tuple[bytes, ...]:
    """Read one key per line; blank lines and lines that start with # are ignored.

    Raises:
        NoKeys: `required`, and no key was found: an empty file must not disable authentication.
    """
    lines = (line.strip() for line in path.read_text("utf-8").splitlines()) if path and path.exists() else ()
    keys = tuple(line.encode() for line in lines if line and not line.startswith("#"))
    if required and not keys:
        raise NoKeys(
            f"{path} contains no key; write one per line into the file that API_KEYS_FILE or ADMIN_KEYS_FILE "
            "names, or leave that setting empty"
        )
    return keys
