"""Read what Compose reads: .env, overridden by the environment. Standard library only."""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path(__file__).parent.parent
ENV = ROOT / ".env"


def number(name: str, default: int, low: int, high: int) -> int:
    """Read a variable as a number; `default` if it is empty or not set.

    Raises:
        ValueError: it is not a number from `low` to `high`; the message names it.
    """
    value = os.environ.get(name, "").strip()
    if not value:
        return default
    if not (value.isascii() and value.isdecimal() and low <= int(value) <= high):
        raise ValueError(f"{name}={value!r} is not a number from {low} to {high}; change it, or unset it")
    return int(value)


def documented() -> list[str]:
    """Return the variables of .env.example, which are those of the compose files."""
    lines = (ROOT / ".env.example").read_text("utf-8").splitlines()
    return [line.partition("=")[0].lstrip("#") for line in lines if "=" in line and not line.startswith("# ")]


def settings() -> dict[str, str]:
    """Return variables by name; an empty one counts as not set."""
    return {**_file(), **{name: value for name, value in os.environ.items() if value}}


def overridden() -> list[str]:
    """Return a sentence for each line of .env that a variable of the environment replaces, since a shell may
    have PORT or TARGET by chance. Values of secrets are not shown.
    """
    return [
        f"{name}={os.environ[name]} is taken from the environment, not {value or 'empty'} from .env"
        for name, value in _file().items()
        if os.environ.get(name, value) not in (value, "") and name != "HF_TOKEN"
    ]


def _file() -> dict[str, str]:
    lines = ENV.read_text("utf-8").splitlines() if ENV.exists() else []
    pairs = (line.split("=", 1) for line in lines if "=" in line and not line.startswith("#"))
    return {name.strip(): value.strip().strip("\"'") for name, value in pairs}
