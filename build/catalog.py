"""catalog.toml and the family files as typed data."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any

from . import targets
from .targets import Target

ROOT = Path(__file__).parent.parent
# The catalogue of the repository, and a user's own, which git ignores.
CATALOG, LOCAL = ROOT / "catalog.toml", ROOT / "catalog.local.toml"
FAMILIES = ROOT / "model_repos" / "families"
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
LAYOUT_OF = {
    "https": "openai",
    "pypi": "ctranslate2",
    "random": "random",
}  # of sources that do not say; others are as on the Hugging Face hub
KNOWN = {
    "family",
    "source",
    "licence",
    "revision",
    "sha256",
    "seed",
    "note",
    "examples",
    "layout",
    "file",
    "folder",
}

Steps = tuple[tuple[str, ...], ...]
Value = str | tuple[str, ...]  # of a name in a step: one argument, or several


class CatalogError(Exception):
    """The catalog, a family file or MODEL_ID asks for something that cannot be; the message says what and
    what to do.
    """


@dataclass(frozen=True)
class Model:
    """One MODEL_ID. `layout` is the form of its weights, `file` the one file of a repository that is wanted,
    `folder` the part of it that holds them; `knobs` are overrides of the family's parameters by name.
    `hashes`: what each of several files must be. `mirrors`: the same model from elsewhere, to be asked in
    this order where `source` does not answer. `examples`: prompts to try it with, for the console.
    """

    id: str
    family: str
    source: str
    licence: str
    revision: str = ""
    sha256: str = ""
    seed: int = 0
    note: str = ""
    examples: tuple[str, ...] = ()
    layout: str = "huggingface"
    file: str = ""
    folder: str = ""
    knobs: Mapping[str, Any] = field(default_factory=dict)
    hashes: Mapping[str, str] = field(default_factory=dict)
    mirrors: tuple[Model, ...] = ()

    @property
    def miniature(self) -> bool:
        """Its weights lie in this repository."""
        return self.source.startswith("file:miniatures/")


@dataclass(frozen=True)
class TritonModel:
    """One model of a repository: the folder it comes from and whether it is decoupled. `graph`: the one of
    the engine's graphs that it is, where Triton runs those without Python.
    """

    name: str
    folder: str
    decoupled: bool = False
    graph: str = ""


@dataclass(frozen=True)
class Layout:
    """A form of weights: the files that it takes, the name that its one file must have, and the steps that
    make other forms of it.
    """

    files: tuple[str, ...] = ()
    name: str = ""
    to: Mapping[str, Steps] = field(default_factory=dict)


@dataclass(frozen=True)
class Recipe:
    """How a family is built for one target: from which layout of weights, by which steps (argv with
    {placeholders}), what it can do.

    `model_types`: what a checkpoint's config.json may call itself. `finish`: steps that are cheap and follow
    every build. `kind` says which engines there are:
    `encoder-decoder`, `decoder`, or `multimodal` (a decoder that reads pictures).
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
        """Patterns of the files to fetch for a model."""
        wanted = (model.file,) if model.file else self.layouts.get(model.layout, Layout()).files
        return tuple(f"{model.folder}/{pattern}" if model.folder else pattern for pattern in wanted)


class Catalog(dict[str, Model]):
    """MODEL_IDs of the catalogue files. `broken`: why others, which are written there too, cannot be used."""

    def __init__(self) -> None:
        super().__init__()
        self.broken: dict[str, str] = {}


def load_catalog(*paths: Path) -> Catalog:
    """Read catalog.toml and then, where there is one, the file that CATALOG names, or catalog.local.toml,
    whose tables replace those of the same id; or the files that are given. One broken table does not stop
    others.

    Raises:
        CatalogError: a file that is not TOML, or that CATALOG names and that is not there.
    """
    found = Catalog()
    for path in paths or (CATALOG, *_own_catalog()):
        for name, row in _tables(path).items():
            try:
                found[name] = _model(name, row, path)
                found.broken.pop(name, None)
            except CatalogError as error:
                found.broken[name] = str(error)
    return found


def _own_catalog() -> list[Path]:
    named = os.environ.get("CATALOG", "").strip()
    if named and not Path(named).expanduser().is_file():
        raise CatalogError(f"CATALOG={named} is not a file; name a file like {CATALOG.name}, or unset it")
    path = Path(named).expanduser() if named else LOCAL
    return [path.resolve()] if path.is_file() else []


def _tables(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise CatalogError(f"{path}: {error}; write tables as [my-model] and strings in quotes") from None
    except UnicodeDecodeError as error:
        raise CatalogError(f"{path} cannot be read ({error}); write it as UTF-8") from None
    except OSError as error:
        raise CatalogError(
            f"{path} cannot be read ({error.strerror}); make it readable for who builds, in Docker user 10001"
        ) from None


def _checked(name: str, given: Any, path: Path) -> dict[str, Any]:
    """The row of a table.

    Raises:
        CatalogError: with the file, the id, the key and the remedy.
    """

    def wrong(what: str, remedy: str) -> CatalogError:
        return CatalogError(f"{path.name}, [{name}]: {what}; {remedy}")

    if not isinstance(given, dict):
        raise wrong("it is not a table", f"write [{name}] with the model's keys below it")
    row: dict[str, Any] = {"licence" if key == "license" else key: value for key, value in given.items()}
    inner = [key for key, value in row.items() if isinstance(value, dict) and key != "sha256"]
    if inner and "family" not in row:
        raise wrong("it has no family", f'an id with a dot needs quotes: ["{name}.{inner[0]}"]')
    for key, example in {"family": "whisper", "source": "file:/path/of/a/folder"}.items():
        if key not in row:
            raise wrong(f"{key} is missing", f'add for example {key} = "{example}"')
    _shaped(row, wrong)
    if row["source"].startswith("file:"):
        return {"licence": "own", **row, "source": _place(row["source"], path)}
    if "licence" not in row:
        raise wrong("licence is missing", "add the licence of the weights, as their publisher names it")
    return row


def _shaped(row: Mapping[str, Any], wrong: Callable[[str, str], CatalogError]) -> None:
    for key in sorted(KNOWN - {"seed", "sha256", "examples"}):
        if not isinstance(row.get(key, ""), str):
            raise wrong(f"{key} is not a string", f'write {key} = "…"')
    if row["family"] not in family_types():
        raise wrong(f"family {row['family']!r} is unknown", f"write one of: {', '.join(family_types())}")
    examples = row.get("examples", [])
    if not (isinstance(examples, list) and all(isinstance(one, str) for one in examples)):
        raise wrong("examples is not a list of strings", 'write examples = ["…", "…"]')
    mirrors = row.get("mirrors", [])
    if not (isinstance(mirrors, list) and all(isinstance(one, dict) for one in mirrors)):
        raise wrong("mirrors is not a list of tables", "write each one's keys below [[my-model.mirrors]]")


def _place(source: str, path: Path) -> str:
    """A `file:` source: a folder of the repository, or an absolute one."""
    folder = Path(source.removeprefix("file:")).expanduser()
    own = not folder.is_absolute() and (ROOT / folder).is_dir()
    return source if own else f"file:{path.parent / folder}"


def _model(name: str, given: Any, path: Path) -> Model:
    row = _checked(name, given, path)
    fixed = {key: value for key, value in row.items() if key in KNOWN}
    fixed.setdefault("layout", LAYOUT_OF.get(row["source"].partition(":")[0], "huggingface"))
    # OpenAI's addresses carry the hash of the file.
    if hashed := re.search(r"/([0-9a-f]{64})/", row["source"]):
        fixed.setdefault("sha256", hashed[1])
    if isinstance(fixed.get("sha256"), dict):
        fixed["hashes"] = fixed.pop("sha256")
    fixed["examples"] = tuple(fixed.get("examples", ()))
    knobs = {key: value for key, value in row.items() if key not in {*KNOWN, "mirrors"}}
    shared = {"family": row["family"], "licence": row["licence"], "note": row.get("note", ""), **knobs}
    mirrors = tuple(_model(name, {**shared, **mirror}, path) for mirror in row.get("mirrors", ()))
    return Model(id=name, knobs=knobs, mirrors=mirrors, **fixed)


def select(catalog: Catalog, ids: str, target: str) -> list[Model]:
    """The models that MODEL_ID names, separated by commas; all miniatures that the target builds
    if it is empty.

    Raises:
        CatalogError: an id is not in the catalog, or there is no such target.
    """
    wanted = list(dict.fromkeys(name.strip() for name in ids.split(",") if name.strip())) or [
        name for name, model in catalog.items() if model.miniature and builds(known(target), model.family)
    ]
    for name in wanted:
        if name in catalog.broken:
            raise CatalogError(catalog.broken[name])
        if name not in catalog:
            near = get_close_matches(name, catalog, 1)
            hint = f"; did you mean {near[0]}?" if near else ""
            listed = ", ".join(
                one for one, model in catalog.items() if not model.source.startswith("random:")
            )
            raise CatalogError(f"MODEL_ID {name!r} is not in the catalogue; it has: {listed}{hint}")
    return [catalog[name] for name in wanted]


@cache
def family_types() -> dict[str, tuple[str, ...]]:
    """Each family's `model_types`."""
    files = sorted(FAMILIES.glob("*.toml"))
    return {path.stem: tuple(family_data(path.stem)["model_types"]) for path in files}


def family_data(family: str) -> dict[str, Any]:
    """A family's file over that of its `base`, table by table."""
    own = tomllib.loads((FAMILIES / f"{family}.toml").read_text("utf-8"))
    base = own.pop("base", "")
    return _over(family_data(f"base/{base}"), own) if base else own


def _over(base: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    rows = {
        key: _over(base[key], value) if isinstance(value, dict) and isinstance(base.get(key), dict) else value
        for key, value in own.items()
    }
    return {**base, **rows}


def builds(target: Target, family: str) -> bool:
    """Whether a target has a recipe for a family."""
    data = family_data(family)
    return target.name in data or target.table(family) is not None


def target_of(model: Model, target: str) -> str:
    """The target that builds a model where TARGET is `target`: itself, or its companion."""
    other = targets.BESIDE.get(target, "")
    if not other:
        return target
    data = family_data(model.family)
    return other if other in data and target not in data else target


def known(target: str) -> Target:
    """A target by its name.

    Raises:
        CatalogError: there is no such target.
    """
    if target not in targets.names():
        raise CatalogError(f"TARGET {target!r} is unknown; choose one of: {', '.join(targets.names())}")
    return targets.find(target)


def load_recipe(model: Model, target: str, environment: Mapping[str, str] | None = None) -> Recipe:
    """The family's recipe with the model's knobs, and what the environment says, applied.

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
    parameters |= {knob: value for knob, value in model.knobs.items() if knob in parameters}
    parameters |= _overrides(model, target, parameters, environment or {})
    if (count := parameters.get("facade_instances", 0)) < 0:
        raise CatalogError(f"{model.id}: FACADE_INSTANCES={count} is below 0; write 0 (by CPUs) or more")
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
    """A knob may be meant for another target than this one."""
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
    """Values of the environment, in the type of the family's own."""
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
        return kind(value)
    except ValueError:
        raise CatalogError(
            f"{model.id}: {name}={value} is not of type {kind.__name__}; write for example {name}={kind(1)}"
        ) from None


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
