"""The engine cache: engines/<model>/<target>/ is complete or absent.

A bundle is built in `<target>.partial` and renamed. Its manifest.json is written last; a build whose wanted manifest equals it does nothing.
Weights brought into another layout lie in weights/<model>.<layout>/ under the same rule, with a key file.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout
from tqdm import tqdm

from .catalog import ROOT, Model, Recipe, load_recipe
from .check import check
from .derived import check_possible
from .engine_config import NAME as ENGINE_MODEL
from .engine_config import Engines, findings, settings
from .repository import parse_config, render
from .sources import Lock, Weights, fetch, pinned, require_space
from .steps import Command, Conversion, Work, work
from .toolchain import Identity, Image, gpus, identity

Manifest = dict[str, Any]
# Folders of build/ whose code shapes an engine; TensorRT-LLM's engines are made by the image's own.
CODE = {"openvino": ("export", "assets"), "trtllm": ()}


class BuildError(Exception):
    """A step failed, or another builder holds the bundle; the message names the log and the remedy."""


@dataclass(frozen=True)
class Places:
    """Where weights and engines live."""

    weights: Path
    engines: Path

    def bundle(self, model_id: str, target: str) -> Path:
        """The folder of one bundle."""
        return self.engines / model_id / target


@dataclass(frozen=True)
class Built:
    """One line of the final table."""

    model_id: str
    target: str
    bytes: int
    seconds: float
    unchanged: bool


@dataclass(frozen=True)
class Job:
    """One build: what is wanted, by which commands, with which tools."""

    model: Model
    recipe: Recipe
    work: Work
    tools: Mapping[str, str]
    toolchain: Identity
    places: Places

    @property
    def bundle(self) -> Path:
        """Where it will lie."""
        return self.places.bundle(self.model.id, self.recipe.target)

    @property
    def log(self) -> Path:
        """What its steps say."""
        return self.bundle.parent / f"{self.recipe.target}.log"

    def _code(self) -> tuple[str, ...]:
        own = any("-m" in command.argv for conversion in self.work.conversions for command in conversion.commands)
        return (*CODE[self.recipe.target], *(("layouts", "assets") if own else ()))

    def wanted(self) -> Manifest:
        """What the bundle must have been made from. Without `commands`, `engine` is the ground that every command stands on; `repository` is the
        rest.
        """
        engine = {
            "source": self.model.source,
            "weights": pinned(self.model, Lock(self.places.weights / "catalog.lock")),
            "conversions": [[command.argv for command in conversion.commands] for conversion in self.work.conversions],
            "commands": [command.argv for command in self.work.commands],
            "code": tree_hash(*(ROOT / "build" / folder for folder in self._code())),
            **self.toolchain.stamp(),
        }
        code = {"code": tree_hash(ROOT / "serving", ROOT / "model_repos"), "render": tree_hash(ROOT / "build")}
        repository = {**code, "models": [vars(m) for m in self.recipe.models], "parameters": dict(self.recipe.parameters)}
        repository["finish"] = [command.argv for command in self.work.finish]
        plain: Manifest = json.loads(json.dumps({"engine": engine, "repository": repository}))
        return {"model": self.model.id, "family": self.model.family, "target": self.recipe.target, **plain}


def tree_hash(*folders: Path) -> str:
    """One hash over names and contents of all source files below some folders."""
    digest = hashlib.sha256()
    for folder in folders:
        for path in sorted(p for p in folder.rglob("*") if p.is_file() and "__pycache__" not in p.parts):
            digest.update(f"{path.relative_to(folder)}\0".encode() + path.read_bytes())
    return digest.hexdigest()


def read_manifest(bundle: Path) -> Manifest | None:
    """A finished bundle's manifest, or None."""
    path = bundle / "manifest.json"
    return json.loads(path.read_text("utf-8")) if path.exists() else None


def plan_job(model: Model, target: str, places: Places, environment: Mapping[str, str] | None = None) -> Job:
    """Everything that a build will do, before it does anything.

    Raises:
        CatalogError: what is asked for cannot be built.
        ToolchainError: the toolchain is not there.
    """
    recipe = load_recipe(model, target, environment)
    if target == "trtllm":
        check_possible(model, recipe, gpus())
    tools = Image.from_environment().tools() if target == "trtllm" else {"python": sys.executable}
    return Job(model, recipe, work(model, recipe, list(tools)), tools, identity(target), places)


def build(model: Model, target: str, places: Places, note: Callable[[str], None] = print, environment: Mapping[str, str] | None = None) -> Built:
    """Make one bundle unless it is there already.

    Raises:
        BuildError: a step failed or another builder is at work.
        FetchError, CatalogError, ToolchainError, TemplateError, Unfit: see `fetch`, `plan_job`, `render` and `check`.
    """
    started = time.monotonic()
    job = plan_job(model, target, places, environment)
    job.bundle.parent.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(f"{job.bundle}.lock", timeout=0):
            unchanged = _current(job.bundle, job.wanted())
            if not unchanged:
                note(f"{model.id}: fetching {model.source}")
                _build(job, fetch(model, job.recipe.files(model), places.weights), note)
    except Timeout:
        raise BuildError(f"{model.id}: another builder is making {job.bundle}; wait for it, or stop it") from None
    size = sum(path.stat().st_size for path in job.bundle.rglob("*") if path.is_file())
    return Built(model.id, target, size, time.monotonic() - started, unchanged)


def _current(bundle: Path, wanted: Manifest) -> bool:
    have = read_manifest(bundle)
    return have is not None and {key: have.get(key) for key in wanted} == wanted


def _build(job: Job, weights: Weights, note: Callable[[str], None]) -> None:
    bundle, wanted = job.bundle, job.wanted()
    partial, old = bundle.with_suffix(".partial"), bundle.with_suffix(".old")
    for leftover in (partial, old):
        shutil.rmtree(leftover, ignore_errors=True)
    (partial / "engine").mkdir(parents=True)
    _make_engine(job, weights, wanted["engine"], partial, note)
    render(job.recipe, partial, bundle)
    finished = {**wanted, "content": weights.sha256, "built": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}
    manifest = {**finished, "capabilities": job.recipe.capabilities, "probe": job.recipe.probe, "serving": _serving(job, partial)}
    (partial / "manifest.json").write_text(json.dumps(manifest, indent=2) + "\n", "utf-8")
    if bundle.exists():
        bundle.rename(old)
    partial.rename(bundle)
    shutil.rmtree(old, ignore_errors=True)


def _make_engine(job: Job, weights: Weights, wanted: Manifest, partial: Path, note: Callable[[str], None]) -> None:
    """Link what the bundle that is there has in common with the wanted one, and make the rest."""
    have = (read_manifest(job.bundle) or {}).get("engine", {})
    job.log.write_text("", "utf-8")
    names = {**job.tools, "source": _source(job, weights), "engine": str(partial / "engine"), "timing": str(job.bundle.parent / "timing.cache")}
    if have == wanted:
        _link(job.bundle / "engine", partial / "engine")
    else:
        _make_parts(job, weights, (have, wanted), names, note)
    _run(job, job.work.finish, names, f"{job.model.id}: facts")


def _make_parts(job: Job, weights: Weights, manifests: tuple[Manifest, Manifest], names: dict[str, str], note: Callable[[str], None]) -> None:
    (have, wanted), engine = manifests, Path(names["engine"])
    if job.recipe.target == "trtllm":
        check(job.recipe, job.work, Image.from_environment(), weights.numbers)
    ground = {key: value for key, value in wanted.items() if key != "commands"}
    same_ground = ground == {key: value for key, value in have.items() if key != "commands"}
    kept = [command for command in job.work.commands if same_ground and command.makes and list(command.argv) in have["commands"]]
    for command in kept:
        _link(job.bundle / "engine" / command.makes, engine / command.makes)
    require_space(engine, 2 * weights.bytes, f"{job.model.id}: building its engine")
    names["weights"] = _converted_weights(job, weights, names["source"], ground, note)
    _run(job, [command for command in job.work.commands if command not in kept], names, f"{job.model.id} for {job.recipe.target}")


def _link(source: Path, target: Path) -> None:
    shutil.copytree(source, target, copy_function=os.link, dirs_exist_ok=True)


def _source(job: Job, weights: Weights) -> str:
    """The weights as fetched: a folder, or what random ones are called."""
    return job.model.source if job.model.source.startswith("random:") else str(_named(job, weights.folder / job.model.folder))


def _converted_weights(job: Job, weights: Weights, source: str, ground: Manifest, note: Callable[[str], None]) -> str:
    """The weights in the layout that the target wants."""
    current = source
    for n, conversion in enumerate(job.work.conversions):
        current = str(_converted(job, conversion, current, {**ground, "conversions": ground["conversions"][: n + 1]}, weights.bytes, note))
    return current


def _named(job: Job, folder: Path) -> Path:
    """The folder, in which a layout of one file has that file under the name that converters expect."""
    layout = job.recipe.layouts[job.model.layout]
    name = layout.name.format(model_name=job.recipe.parameters.get("model_name") or job.model.id)
    if not name or (folder / name).exists():
        return folder
    found = sorted(path for pattern in ((job.model.file,) if job.model.file else layout.files) for path in folder.glob(pattern))
    if len(found) != 1:
        raise BuildError(f"{job.model.id}: {folder} holds {len(found)} files where one is wanted as {name}; name it with `file` in catalog.toml")
    (folder / name).unlink(missing_ok=True)
    (folder / name).symlink_to(found[0].relative_to(folder))
    return folder


def _converted(job: Job, conversion: Conversion, source: str, ground: Manifest, size: int, note: Callable[[str], None]) -> Path:
    """The weights in another layout; one of each kind is kept, the last."""
    folder = job.places.weights / f"{job.model.id}.{conversion.to}"
    key = hashlib.sha256(json.dumps({name: value for name, value in ground.items() if name != "gpu"}, sort_keys=True).encode()).hexdigest()
    mark, partial = folder / ".key", folder.with_name(f"{folder.name}.partial")
    if mark.exists() and mark.read_text("utf-8") == key:
        return folder
    note(f"{job.model.id}: bringing its weights into the layout {conversion.to!r}")
    for leftover in (folder, partial):
        shutil.rmtree(leftover, ignore_errors=True)
    partial.mkdir(parents=True)
    require_space(partial, size, f"{job.model.id}: its weights in the layout {conversion.to!r}")
    _run(job, conversion.commands, {**job.tools, "from": source, "to": str(partial), "source": source}, f"{job.model.id} to {conversion.to}")
    (partial / ".key").write_text(key, "utf-8")
    partial.rename(folder)
    return folder


def _run(job: Job, commands: Sequence[Command], names: Mapping[str, str], what: str) -> None:
    if not commands:
        return
    environment = {**os.environ, **({"PATH": Image.from_environment().search_path} if job.recipe.target == "trtllm" else {})}
    with job.log.open("a", encoding="utf-8") as file:
        for command in tqdm(commands, desc=what, unit="step"):
            argv = command.filled(names)
            file.write("$ " + " ".join(argv) + "\n")
            file.flush()
            # Our own modules are found from here; the image's tools must not find ours, and may write where they run.
            where = ROOT if "-m" in argv[:2] else job.bundle.parent
            done = subprocess.run(argv, cwd=where, env=environment, stdout=file, stderr=subprocess.STDOUT, check=False)
            if done.returncode != 0:
                last = job.log.read_text("utf-8", "replace").rstrip().rsplit("\n", 1)[-1]
                raise BuildError(f"{job.model.id}: step {' '.join(argv[:4])} … ended with {done.returncode}: {last} (log: {job.log})")


def _serving(job: Job, partial: Path) -> dict[str, Any]:
    """What the guard must know of a bundle for GPUs; its engine model is held to the backend's rules first."""
    if job.recipe.target != "trtllm":
        return {}
    engines, home = Engines.of(job.recipe, partial / "engine"), str(job.bundle / "engine")
    config = parse_config(partial / "repository" / ENGINE_MODEL / "config.pbtxt")
    for key in ("gpt_model_path", "encoder_model_path"):  # as they will be once the bundle has its name
        if key in config.parameters:
            config.parameters[key].string_value = config.parameters[key].string_value.replace(home, str(engines.folder))
    if wrong := findings(config, engines):
        raise BuildError(f"{job.model.id}: " + "; ".join(wrong))
    return settings(engines)
