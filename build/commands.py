"""Plan the commands of a build: the steps that bring the weights into the layout that a target reads, and
turn that into engines.

A command is identified by its argv with values filled in and folders left as {names}: builds that agree in
it, in the weights and in the toolchain produce the same files, wherever they run.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from . import targets
from .catalog import CatalogError, Model
from .recipes import Layout, Recipe, Steps, Value

FOLDERS = ("from", "to", "source", "weights", "engine", "timing")  # filled in when a command runs
FIELD = re.compile(r"\{(\w+)\}")


@dataclass(frozen=True)
class Command:
    """One step: an argv in which only {names} of tools and folders are open. `makes` is the part of the
    engine folder that only this step writes, if there is one.
    """

    argv: tuple[str, ...]

    @property
    def makes(self) -> str:
        """Return the name of a folder below engine/; empty if there is none."""
        return next(
            (part.removeprefix("{engine}/") for part in self.argv if part.startswith("{engine}/")), ""
        )

    def filled(self, names: Mapping[str, str]) -> list[str]:
        """Fill in the names and return the argv to run."""
        return [FIELD.sub(lambda match: names[match[1]], part) for part in self.argv]


@dataclass(frozen=True)
class Conversion:
    """A step from one layout of weights to another."""

    to: str
    commands: tuple[Command, ...]


@dataclass(frozen=True)
class BuildSteps:
    """All steps between fetched weights and a finished engine folder."""

    conversions: tuple[Conversion, ...]
    commands: tuple[Command, ...]
    finish: tuple[Command, ...]

    def all(self) -> tuple[Command, ...]:
        """Return the commands in running order."""
        return (
            *(command for conversion in self.conversions for command in conversion.commands),
            *self.commands,
            *self.finish,
        )


def route(layouts: Mapping[str, Layout], start: str, end: str) -> list[str] | None:
    """Find the shortest way from one layout to another, both given by name; None if there is none."""
    ways = deque([[start]])
    seen = {start}
    while ways:
        way = ways.popleft()
        if way[-1] == end:
            return way
        for step in layouts[way[-1]].to if way[-1] in layouts else ():
            if step not in seen:
                seen.add(step)
                ways.append([*way, step])
    return None


def work(model: Model, recipe: Recipe, tools: Sequence[str]) -> BuildSteps:
    """Plan the commands of a build; `tools` are names that are filled in when the commands run.

    Raises:
        CatalogError: the model's weights cannot be brought into the layout that the target wants, or a step
        names what is not defined.
    """
    way = (
        [recipe.layout]
        if recipe.random and model.layout == "random"
        else route(recipe.layouts, model.layout, recipe.layout)
    )
    if way is None:
        raise CatalogError(
            f"{model.id}: weights in the layout {model.layout!r} cannot be built for TARGET={recipe.target}; "
            f"family {recipe.family} wants {recipe.layout!r}"
        )
    values: dict[str, Value] = {
        "id": model.id,
        "seed": str(model.seed),
        "file": model.file,
        "model_name": recipe.parameters.get("model_name") or model.id,
        **targets.find(recipe.target).derived(recipe.parameters),
    }
    values |= {name: str(value) for name, value in recipe.parameters.items() if name not in values}
    open_names = {*FOLDERS, *tools}
    conversions = tuple(
        Conversion(b, _commands(recipe.layouts[a].to[b], values, open_names, model)) for a, b in pairwise(way)
    )
    steps, finish = (_commands(rows, values, open_names, model) for rows in (recipe.steps, recipe.finish))
    return BuildSteps(tuple(c for c in conversions if c.commands), steps, finish)


def _commands(
    steps: Steps, values: Mapping[str, Value], open_names: set[str], model: Model
) -> tuple[Command, ...]:
    return tuple(
        Command(tuple(part for raw in step for part in _expand(raw, values, open_names, model)))
        for step in steps
    )


def _expand(raw: str, values: Mapping[str, Value], open_names: set[str], model: Model) -> tuple[str, ...]:
    """Replace a part that is the name of several arguments with all of them."""
    whole = FIELD.fullmatch(raw)
    if whole and isinstance(found := values.get(whole[1]), tuple):
        return found

    def fill(match: re.Match[str]) -> str:
        name = match[1]
        if name in open_names:
            return match[0]
        if not isinstance(value := values.get(name), str):
            raise CatalogError(
                f"{model.id}: a step of family {model.family} names {{{name}}}, which is neither a parameter "
                "nor derived from one"
            )
        return value

    return (FIELD.sub(fill, raw),)
