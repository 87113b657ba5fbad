"""catalog.toml and the family files as typed data."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
FAMILIES = ROOT / "model_repos" / "families"
TARGETS = ("trtllm", "openvino")


class CatalogError(Exception):
    """The catalog, a family file or MODEL_ID asks for something that cannot be; the message says what and what to do."""


@dataclass(frozen=True)
class Model:
    """One MODEL_ID. `knobs` are overrides of the family's parameters by name."""

    id: str
    family: str
    source: str
    licence: str
    revision: str = ""
    sha256: str = ""
    seed: int = 0
    note: str = ""
    knobs: Mapping[str, Any] = field(default_factory=dict)

    @property
    def miniature(self) -> bool:
        """Its weights lie in this repository."""
        return self.source.startswith("file:")


@dataclass(frozen=True)
class TritonModel:
    """One model of a repository: the folder it comes from and whether it is decoupled."""

    name: str
    folder: str
    decoupled: bool = False


@dataclass(frozen=True)
class Recipe:
    """How a family is built for one target: which weight files, which steps (argv with {placeholders}), what it can do."""

    family: str
    target: str
    models: tuple[TritonModel, ...]
    parameters: Mapping[str, Any]
    files: tuple[str, ...]
    steps: tuple[tuple[str, ...], ...]
    capabilities: tuple[str, ...]
    probe: Mapping[str, Any]


def load_catalog(path: Path = ROOT / "catalog.toml") -> dict[str, Model]:
    """All MODEL_IDs of a catalog file."""
    known = {"family", "source", "licence", "revision", "sha256", "seed", "note"}
    catalog = {}
    for name, row in tomllib.loads(path.read_text("utf-8")).items():
        fixed = {key: value for key, value in row.items() if key in known}
        catalog[name] = Model(id=name, knobs={key: value for key, value in row.items() if key not in known}, **fixed)
    return catalog


def select(catalog: Mapping[str, Model], ids: str) -> list[Model]:
    """The models that MODEL_ID names, separated by commas; all miniatures if it is empty.

    Raises:
        CatalogError: an id is not in the catalog.
    """
    wanted = list(dict.fromkeys(name.strip() for name in ids.split(",") if name.strip())) or [name for name, model in catalog.items() if model.miniature]
    for name in wanted:
        if name not in catalog:
            raise CatalogError(f"MODEL_ID {name!r} is not in catalog.toml; it has: {', '.join(catalog)}")
    return [catalog[name] for name in wanted]


def load_recipe(model: Model, target: str) -> Recipe:
    """The family's recipe with the model's knobs applied.

    Raises:
        CatalogError: unknown target or family, a knob the family does not have, or a target the family is not built for.
    """
    if target not in TARGETS:
        raise CatalogError(f"TARGET {target!r} is unknown; choose one of: {', '.join(TARGETS)}")
    path = FAMILIES / f"{model.family}.toml"
    if not path.exists():
        raise CatalogError(f"{model.id}: there is no family {model.family!r}; it would stand in {path.relative_to(ROOT)}")
    data = tomllib.loads(path.read_text("utf-8"))
    if target not in data:
        raise CatalogError(f"family {model.family} cannot be built for TARGET={target} yet; it can for: {', '.join(t for t in TARGETS if t in data)}")
    for knob in model.knobs:
        if knob not in data["parameters"]:
            raise CatalogError(f"{model.id}: family {model.family} has no parameter {knob!r}; it has: {', '.join(data['parameters'])}")
    models = tuple(TritonModel(name, **row) for name, row in data["models"].items())
    return Recipe(model.family, target, models, {**data["parameters"], **model.knobs}, *_tuples(data[target]), data["probe"])


def _tuples(section: Mapping[str, Sequence[Any]]) -> tuple[tuple[str, ...], tuple[tuple[str, ...], ...], tuple[str, ...]]:
    return tuple(section["files"]), tuple(tuple(step) for step in section["steps"]), tuple(section.get("capabilities", ()))
