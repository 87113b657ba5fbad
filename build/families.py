"""Read the families' files (model_repos/families), which describe as data the Triton models and steps of a
bundle.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from .targets import Target

FAMILIES = Path(__file__).parents[1] / "model_repos" / "families"


@cache
def family_types() -> dict[str, tuple[str, ...]]:
    """Return each family's `model_types`."""
    files = sorted(FAMILIES.glob("*.toml"))
    return {path.stem: tuple(family_data(path.stem)["model_types"]) for path in files}


def family_data(family: str) -> dict[str, Any]:
    """Merge a family's file over that of its `base`, table by table, and a target's table over
    targets/<target>.toml.
    """
    own = _read(f"{family}.toml")
    base = own.pop("base", "")
    whole = _over(family_data(f"base/{base}"), own) if base else own
    shared = {path.stem for path in (FAMILIES / "targets").glob("*.toml")} & whole.keys()
    return whole | {name: _over(_read(f"targets/{name}.toml"), whole[name]) for name in shared}


def _read(name: str) -> dict[str, Any]:
    return tomllib.loads((FAMILIES / name).read_text("utf-8"))


def _over(base: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    rows = {
        key: _over(base[key], value) if isinstance(value, dict) and isinstance(base.get(key), dict) else value
        for key, value in own.items()
    }
    return {**base, **rows}


def builds(target: Target, family: str) -> bool:
    """Tell whether a target has a recipe for a family."""
    data = family_data(family)
    return target.name in data or target.table(family) is not None
