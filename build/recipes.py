"""Recipes: a family's data for one target, with a model's overrides and the environment's values applied."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from . import targets
from .catalog import ROOT, CatalogError, Model, known
from .families import FAMILIES, family_data

# What the environment may say about a build, for every model that has a parameter of that name in small
# letters.
OVERRIDES = (
    "TP_SIZE",
    "PP_SIZE",
    "PRECISION",
    "WEIGHT_ONLY",
    "KV_CACHE",
    "QUANTIZATION",
    "KV_CACHE_FRACTION",
    "MAX_TOKENS_IN_PAGED_KV_CACHE",
    "MAX_ATTENTION_WINDOW_SIZE",
    "ENGINE_BATCH_SIZE",
    "MAX_BATCH_SIZE",
    "MAX_BEAM_WIDTH",
    "FACADE_INSTANCES",
)
ALIASES = {"MAX_TOKENS_IN_PAGED_KV_CACHE": "MAX_TOKENS_IN_KV_CACHE"}  # NVIDIA's guides say it so

Steps = tuple[tuple[str, ...], ...]
Value = str | tuple[str, ...]  # of a name in a step: one argument, or several


@dataclass(frozen=True)
class TritonModel:
    """One model of a repository: its source folder and whether it is decoupled. `graph` names the engine's
    graph that it is, where Triton runs graphs without Python.
    """

    name: str
    folder: str
    decoupled: bool = False
    graph: str = ""


@dataclass(frozen=True)
class Layout:
    """A form of weights: the files to fetch, the name that its single file must have, and the steps that
    convert it.
    """

    files: tuple[str, ...] = ()
    name: str = ""
    to: Mapping[str, Steps] = field(default_factory=dict)


@dataclass(frozen=True)
class Recipe:
    """How a family is built for one target.

    Attributes:
        layout: form of weights that the steps read
        steps: argv with {placeholders}
        finish: cheap steps that follow every build
        model_types: names that a checkpoint's config.json may have
        kind: `encoder-decoder`, `decoder`, or `multimodal` (a decoder that reads pictures)
    """

    family: str
    target: str
    kind: str
    model_types: tuple[str, ...]
    models: tuple[TritonModel, ...]
    parameters: Mapping[str, Any]
    layout: str
    layouts: Mapping[str, Layout]
    random: bool
    steps: Steps
    finish: Steps
    capabilities: tuple[str, ...]
    probe: Mapping[str, Any]

    def files(self, model: Model) -> tuple[str, ...]:
        """Return patterns of the files to fetch for a model."""
        wanted = (model.file,) if model.file else self.layouts.get(model.layout, Layout()).files
        return tuple(f"{model.folder}/{pattern}" if model.folder else pattern for pattern in wanted)


def load_recipe(model: Model, target: str, environment: Mapping[str, str] | None = None) -> Recipe:
    """Return the family's recipe with the model's overrides and the environment's values applied.

    Raises:
        CatalogError: unknown target or family, a knob the family does not have, a target the family is not
        built for, or a value it does not take.
    """
    data = _family(model, target)
    section = data[target]
    parameters = data["parameters"] | section.get("parameters", {})
    for knob in model.knobs:
        if not _has(data, knob):
            raise CatalogError(
                f"{model.id}: family {model.family} has no parameter {knob!r}; it has: "
                f"{', '.join(parameters)}"
            )
    own = {knob: value for knob, value in model.knobs.items() if knob in parameters}
    for knob, value in own.items():
        _check_type(model, knob, value, parameters[knob])
    parameters |= own
    parameters |= _overrides(model, target, parameters, environment or {})
    _check_supported(model, target, parameters, section.get("supports", {}))
    return Recipe(
        family=model.family,
        target=target,
        kind=data.get("kind", "encoder-decoder"),
        model_types=tuple(data["model_types"]),
        models=tuple(TritonModel(name, **row) for name, row in section.get("models", data["models"]).items()),
        parameters=parameters,
        layout=section["layout"],
        layouts={name: _layout(row) for name, row in data["layouts"].items()},
        random=bool(section.get("random")),
        steps=_steps(section["steps"]),
        finish=_steps(section.get("finish", [])),
        capabilities=tuple(section.get("capabilities", ())),
        probe=section.get("probe", data["probe"]),
    )


def _family(model: Model, target: str) -> dict[str, Any]:
    known(target)
    path = FAMILIES / f"{model.family}.toml"
    if not path.exists():
        raise CatalogError(
            f"{model.id}: family {model.family!r} does not exist; add {path.relative_to(ROOT)}"
        )
    data = family_data(model.family)
    if target not in data and (table := known(target).table(model.family)) is not None:
        data[target] = table
    if target not in data:
        raise CatalogError(
            f"family {model.family} cannot be built for TARGET={target} yet; it can for: "
            f"{', '.join(t for t in targets.names() if t in data)}"
        )
    return data


def _has(data: Mapping[str, Any], knob: str) -> bool:
    """Tell whether a parameter exists; it may be meant for another target."""
    return any(
        knob in part
        for part in (
            data["parameters"],
            *(data[t].get("parameters", {}) for t in targets.names() if t in data),
        )
    )


def _overrides(
    model: Model, target: str, parameters: Mapping[str, Any], environment: Mapping[str, str]
) -> dict[str, Any]:
    """Return the environment's values, converted to the type of the family's default."""
    found = {}
    for name in OVERRIDES:
        value, key, given = environment.get(name, ""), name.lower(), name
        if not value and (value := environment.get(ALIASES.get(name, ""), "")):
            given = ALIASES[name]
        if value and key in parameters:
            found[key] = _typed(model, given, value, type(parameters[key]))
        elif value not in ("", "0", "1", "none"):
            raise CatalogError(
                f"{model.id}: {given}={value} has no effect on family {model.family} with TARGET={target}; "
                f"unset {given}"
            )
    return found


def _typed(model: Model, name: str, value: str, kind: type) -> Any:
    try:
        made = kind(value)
    except ValueError:
        raise CatalogError(
            f"{model.id}: {name}={value} is not of type {kind.__name__}; write for example {name}={kind(1)}"
        ) from None
    if kind is not str and made < 0:
        raise CatalogError(f"{model.id}: {name}={value} is below 0; write 0 or more")
    return made


def _check_type(model: Model, knob: str, value: Any, default: Any) -> None:
    """Refuse a catalog value that is below 0 or does not have the default's type (an integer may stand for a
    float).
    """
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not (isinstance(default, float) and number) and type(value) is not type(default):
        raise CatalogError(
            f"{model.id}: {knob} = {value!r} is not of type {type(default).__name__}; write for example "
            f"{knob} = {json.dumps(default)}"
        )
    if number and value < 0:
        raise CatalogError(f"{model.id}: {knob} = {value} is below 0; write 0 or more")


def _check_supported(
    model: Model, target: str, parameters: Mapping[str, Any], supports: Mapping[str, list[Any]]
) -> None:
    for name, values in supports.items():
        if parameters[name] not in values:
            choices = ", ".join(map(str, values))
            raise CatalogError(
                f"{model.id}: {name.upper()}={parameters[name]} cannot be built for TARGET={target}; family "
                f"{model.family} takes: {choices}"
            )


def _layout(row: Mapping[str, Any]) -> Layout:
    return Layout(
        tuple(row.get("files", ())),
        row.get("name", ""),
        {name: _steps(steps) for name, steps in row.get("to", {}).items()},
    )


def _steps(rows: list[list[str]]) -> Steps:
    return tuple(tuple(row) for row in rows)
