"""Read catalog.toml, and a user's own catalog, as typed data."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from . import targets
from .families import builds, family_data, family_types
from .targets import Target

ROOT = Path(__file__).parent.parent
# The catalogue of the repository, and a user's own, which git ignores.
CATALOG, LOCAL = ROOT / "catalog.toml", ROOT / "catalog.local.toml"
# Of sources that do not say; others are as on the Hugging Face hub.
LAYOUT_OF = {"https": "openai", "pypi": "ctranslate2", "random": "random"}


class CatalogError(Exception):
    """The catalog, a family file or MODEL_ID asks for something impossible; the message gives reason and
    remedy.
    """


@dataclass(frozen=True)
class Model:
    """One MODEL_ID.

    Attributes:
        layout: form of its weights
        file: the one file of a repository to fetch
        folder: the part of a repository that holds the weights
        knobs: overrides of the family's parameters by name
        hashes: expected SHA-256 of each of several files
        mirrors: the same model from other sources, tried in this order if `source` fails
        examples: sample prompts for the console
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
        """Tell whether its weights are in this repository."""
        return self.source.startswith("file:miniatures/")


# The keys of a model's table that are no overrides.
KNOWN = {one.name for one in fields(Model)} - {"id", "knobs", "hashes", "mirrors"}


class Catalog(dict[str, Model]):
    """MODEL_IDs of the catalog files. `broken` gives the reason why others, which are in the files, too,
    cannot be used.
    """

    def __init__(self) -> None:
        super().__init__()
        self.broken: dict[str, str] = {}


def load_catalog(*paths: Path) -> Catalog:
    """Read catalog.toml, then the file that CATALOG names, or catalog.local.toml if there is one, whose
    tables replace those of the same id; or read the given files. One broken table does not affect others.

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
            f"{path} cannot be read ({error.strerror}); make it readable for the builder, "
            "in Docker user 10001"
        ) from None


def _checked(name: str, given: Any, path: Path) -> dict[str, Any]:
    """Check a table and return its row.

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
    """Resolve a `file:` source: a folder of the repository, or an absolute path."""
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
    """Return the models that MODEL_ID names, separated by commas; if it is empty, all miniatures that the
    target can build.

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


def target_of(model: Model, target: str) -> str:
    """Return the target that builds a model under TARGET=`target`: that target, or else its first companion
    that can, or that target if none can.
    """
    able = (target, *targets.COMPANIONS.get(target, ()))
    if len(able) == 1:
        return target
    data = family_data(model.family)
    return next((name for name in able if name in data), target)


def known(target: str) -> Target:
    """Find a target by name.

    Raises:
        CatalogError: there is no such target.
    """
    if target not in targets.names():
        raise CatalogError(f"TARGET {target!r} is unknown; choose one of: {', '.join(targets.names())}")
    return targets.find(target)
