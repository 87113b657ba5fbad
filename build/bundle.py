"""The engine cache: engines/<model>/<target>/ is complete or absent.

A bundle is built in `<target>.partial` and renamed. Its manifest.json is written last; a build whose wanted manifest equals it does nothing.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout
from tqdm import tqdm

from .catalog import ROOT, Model, Recipe, load_recipe
from .repository import render
from .sources import Lock, Weights, fetch, pinned

Manifest = dict[str, Any]
TOOLS = ("openvino", "torch", "transformers", "tokenizers")


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


def tree_hash(*folders: Path) -> str:
    """One hash over names and contents of all source files below some folders."""
    digest = hashlib.sha256()
    for folder in folders:
        for path in sorted(p for p in folder.rglob("*") if p.is_file() and "__pycache__" not in p.parts):
            digest.update(f"{path.relative_to(folder)}\0".encode() + path.read_bytes())
    return digest.hexdigest()


def wanted_manifest(model: Model, recipe: Recipe, revision: str | None) -> Manifest:
    """What a bundle must have been made from. `engine` decides whether graphs are compiled anew, `repository` the rest."""
    engine = {
        "source": model.source,
        "weights": revision,
        "steps": recipe.steps,
        "parameters": dict(recipe.parameters),
        "seed": model.seed,
        "code": tree_hash(ROOT / "build" / "export", ROOT / "build" / "assets"),
        "tools": {name: metadata.version(name) for name in TOOLS},
    }
    repository = {"code": tree_hash(ROOT / "serving", ROOT / "model_repos"), "models": [vars(m) for m in recipe.models], "render": tree_hash(ROOT / "build")}
    plain: Manifest = json.loads(json.dumps({"engine": engine, "repository": repository}))
    return {"model": model.id, "family": model.family, "target": recipe.target, **plain}


def read_manifest(bundle: Path) -> Manifest | None:
    """A finished bundle's manifest, or None."""
    path = bundle / "manifest.json"
    return json.loads(path.read_text("utf-8")) if path.exists() else None


def build(model: Model, target: str, places: Places, note: Callable[[str], None] = print) -> Built:
    """Make one bundle unless it is there already.

    Raises:
        BuildError: a step failed or another builder is at work.
        FetchError, CatalogError: see `fetch` and `load_recipe`.
    """
    started = time.monotonic()
    recipe, bundle = load_recipe(model, target), places.bundle(model.id, target)
    bundle.parent.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(f"{bundle}.lock", timeout=0):
            unchanged = _current(bundle, wanted_manifest(model, recipe, pinned(model, Lock(places.weights / "catalog.lock"))))
            if not unchanged:
                note(f"{model.id}: fetching {model.source}")
                weights = fetch(model, recipe.files, places.weights)
                _build(model, recipe, bundle, weights, places)
    except Timeout:
        raise BuildError(f"{model.id}: another builder is making {bundle}; wait for it, or stop it") from None
    size = sum(path.stat().st_size for path in bundle.rglob("*") if path.is_file())
    return Built(model.id, target, size, time.monotonic() - started, unchanged)


def _current(bundle: Path, wanted: Manifest) -> bool:
    have = read_manifest(bundle)
    return have is not None and {key: have.get(key) for key in wanted} == wanted


def _build(model: Model, recipe: Recipe, bundle: Path, weights: Weights, places: Places) -> None:
    wanted = wanted_manifest(model, recipe, pinned(model, Lock(places.weights / "catalog.lock")))
    partial, old = bundle.with_suffix(".partial"), bundle.with_suffix(".old")
    for leftover in (partial, old):
        shutil.rmtree(leftover, ignore_errors=True)
    (partial / "engine").mkdir(parents=True)
    have = read_manifest(bundle)
    if have is not None and have["engine"] == wanted["engine"]:
        shutil.copytree(bundle / "engine", partial / "engine", copy_function=os.link, dirs_exist_ok=True)
    else:
        _run_steps(model, recipe, weights, partial, bundle.parent / f"{recipe.target}.log")
    render(recipe, partial)
    finished = {**wanted, "content": weights.sha256, "built": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}
    manifest = {**finished, "capabilities": recipe.capabilities, "probe": recipe.probe}
    (partial / "manifest.json").write_text(json.dumps(manifest, indent=2) + "\n", "utf-8")
    if bundle.exists():
        bundle.rename(old)
    partial.rename(bundle)
    shutil.rmtree(old, ignore_errors=True)


def _run_steps(model: Model, recipe: Recipe, weights: Weights, partial: Path, log: Path) -> None:
    origin = model.source if model.source.startswith("random:") else str(weights.folder)
    names: Mapping[str, str] = {
        "python": sys.executable,
        "weights": origin,
        "engine": str(partial / "engine"),
        "seed": str(model.seed),
        **{k: str(v) for k, v in recipe.parameters.items()},
    }
    with log.open("w", encoding="utf-8") as file:
        for step in tqdm(recipe.steps, desc=f"{model.id} for {recipe.target}", unit="step"):
            argv = [part.format(**names) for part in step]
            file.write("$ " + " ".join(argv) + "\n")
            file.flush()
            done = subprocess.run(argv, cwd=ROOT, stdout=file, stderr=subprocess.STDOUT, check=False)
            if done.returncode != 0:
                last = log.read_text("utf-8", "replace").rstrip().rsplit("\n", 1)[-1]
                raise BuildError(f"{model.id}: step {' '.join(step[:4])} … ended with {done.returncode}: {last} (log: {log})")
