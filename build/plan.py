"""Plan one build before it starts: what is wanted, by which commands, with which tools."""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from tokenize import COMMENT, INDENT, NL, tokenize
from typing import Any

from conch.bundle import MANIFEST, Manifest
from conch.toolchain import Identity

from . import targets
from .catalog import ROOT, Model
from .commands import BuildSteps, Command, work
from .recipes import Recipe, load_recipe
from .sources import pinned
from .steps import run_step
from .targets import Target
from .tensors import MODELS

Wanted = dict[str, Any]
# What writes a bundle's Triton repository, besides the folder of its target.
RENDER = [f"build/{name}.py" for name in ("bundle", "repository", "tensors", "whisper_vocabulary")]
RENDER += ["build/pictures", "build/targets/__init__.py", "build/targets/nvidia"]


class BuildError(Exception):
    """A step failed, or another builder holds the bundle; the message names the log and the remedy."""


@dataclass(frozen=True)
class Places:
    """Folders of weights and engines."""

    weights: Path
    engines: Path

    def bundle(self, model_id: str, target: str) -> Path:
        """Return the folder of one bundle."""
        return self.engines / model_id / target


@dataclass(frozen=True)
class BuildJob:
    """One build: what is wanted, by which commands, with which tools, on which GPUs (`devices`, as in
    CUDA_VISIBLE_DEVICES; empty for all).
    """

    model: Model
    recipe: Recipe
    work: BuildSteps
    tools: Mapping[str, str]
    toolchain: Identity
    places: Places
    devices: str = ""

    @property
    def target(self) -> Target:
        """Return the target that it is built for."""
        return targets.find(self.recipe.target)

    @property
    def bundle(self) -> Path:
        """Return the folder where it will lie."""
        return self.places.bundle(self.model.id, self.recipe.target)

    @property
    def log(self) -> Path:
        """Return the log of its steps."""
        return self.bundle.parent / f"{self.recipe.target}.log"

    def _code(self) -> tuple[str, ...]:
        own = any(
            "-m" in command.argv for conversion in self.work.conversions for command in conversion.commands
        )
        return (*self.target.code, *(("build/layouts", "build/assets") if own else ()))

    def wanted(self) -> Wanted:
        """Return what the bundle must have been made from. Without `commands`, `engine` is what all commands
        depend on; `repository` is the rest.
        """
        engine = {
            "source": self.model.source,
            "form": {"layout": self.model.layout, "folder": self.model.folder, "file": self.model.file},
            "weights": pinned(self.model, self.places.weights),
            "conversions": [
                [command.argv for command in conversion.commands] for conversion in self.work.conversions
            ],
            "commands": [command.argv for command in self.work.commands],
            "code": tree_hash(*(ROOT / folder for folder in self._code())),
            **asdict(self.toolchain),
        }
        folders = sorted({model.folder for model in self.recipe.models})
        repository = {
            "code": tree_hash(ROOT / "conch", ROOT / "serving", *(MODELS / folder for folder in folders)),
            "render": tree_hash(
                *(ROOT / path for path in RENDER), ROOT / "build/targets" / self.recipe.target
            ),
            "models": [vars(m) for m in self.recipe.models],
            "parameters": dict(self.recipe.parameters),
        }
        if template := self.recipe.parameters.get("chat_template"):
            engine["chat_template"] = tree_hash(ROOT / str(template))
        repository["finish"] = [command.argv for command in self.work.finish]
        plain: Wanted = json.loads(json.dumps({"engine": engine, "repository": repository}))
        return {"model": self.model.id, "family": self.model.family, "target": self.recipe.target, **plain}

    def run(self, commands: Sequence[Command], names: Mapping[str, str], what: str) -> None:
        """Run steps one after another, with progress on stderr and all output in the log.

        Raises:
            BuildError: a step failed.
        """
        if not commands:
            return
        environment = {**os.environ, **self.target.environment(self.devices)}
        with self.log.open("ab") as file:
            for number, command in enumerate(commands, 1):
                argv = command.filled(names)
                place, began = f"step {number} of {len(commands)}", time.monotonic()
                shown = " ".join([Path(argv[0]).name, *argv[1:3]])
                print(f"{what}: {place}: {shown}", file=sys.stderr, flush=True)
                file.write(f"$ {' '.join(argv)}\n".encode())
                # Our own modules are found from here; the image's tools must not find ours, and may write
                # where they run.
                where = ROOT if "-m" in argv[:2] else self.bundle.parent

                def tell(line: str, place: str = place) -> None:
                    print(f"{what}: {place}: {line}", file=sys.stderr, flush=True)

                status = run_step(argv, where, environment, file, tell)
                if status != 0:
                    last = self.log.read_text("utf-8", "replace").rstrip().rsplit("\n", 1)[-1]
                    raise BuildError(
                        f"{self.model.id}: step {' '.join(argv[:4])} … ended with {status}: {last} "
                        f"(log: {self.log})"
                    )
                print(f"{what}: {place}: done, {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)


def tree_hash(*places: Path) -> str:
    """Hash names and contents of some files, and of all source files below some folders. Of Python files only
    tokens count, not comments and blank lines.
    """
    digest = hashlib.sha256()
    for place in places:
        found = [place] if place.is_file() else place.rglob("*")
        for path in sorted(p for p in found if p.is_file() and "__pycache__" not in p.parts):
            stat = path.stat()
            digest.update(f"{path.relative_to(place) if path != place else path.name}\0".encode())
            digest.update(_content(path, stat.st_mtime_ns, stat.st_size))
    return digest.hexdigest()


@cache
def _content(path: Path, modified: int, size: int) -> bytes:
    """Return what of a file counts; the cache holds it until the file changes."""
    if path.suffix != ".py":
        return path.read_bytes()
    with path.open("rb") as file:
        tokens = [
            (token.type, "" if token.type == INDENT else token.string)
            for token in tokenize(file.readline)
            if token.type not in (COMMENT, NL)
        ]
    return repr(tokens).encode()


def read_manifest(bundle: Path) -> Manifest | None:
    """Read a finished bundle's manifest; None if there is none."""
    return Manifest.load(bundle) if (bundle / MANIFEST).exists() else None


def plan_job(
    model: Model,
    target: str,
    places: Places,
    environment: Mapping[str, str] | None = None,
    devices: str = "",
    toolchain: Identity | None = None,
) -> BuildJob:
    """Plan a build before it starts. `toolchain` is used, if given, instead of asking the target's.

    Raises:
        CatalogError: what is asked for cannot be built.
        ToolchainError: the toolchain is not there.
    """
    recipe = load_recipe(model, target, environment)
    found = targets.find(target)
    found.check_possible(model, recipe, devices)
    tools = found.tools()
    steps = work(model, recipe, list(tools))
    return BuildJob(model, recipe, steps, tools, toolchain or found.identity(devices), places, devices)
