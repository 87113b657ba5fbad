"""Targets: how engines run. A target is an object; no other code compares target names.

One folder holds all that one target needs, with its object in `target.py`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from conch import toolchains
from conch.bundle import Serving
from conch.toolchain import Identity, ToolchainError

if TYPE_CHECKING:
    from ..catalog import Model
    from ..commands import BuildSteps
    from ..recipes import Recipe, TritonModel, Value


# The code of exporters and of what they read, which shapes their engines.
EXPORTERS = ("build/checkpoints", "build/pictures", "serving/architectures")


class TemplateError(Exception):
    """The template does not fit this version of Conch; the message names placeholder and remedy."""


class Unfit(Exception):
    """Toolchain or machine do not match the recipe; one sentence for each finding."""


class Target:
    """What builds and plans ask of a target. The defaults suit one of Python packages that needs no GPU; its
    toolchain is the one of the same name in `conch.toolchains`.

    Attributes:
        name: in TARGET and in the families' TOML tables
        code: the folders whose code shapes an engine; a change rebuilds it
    """

    name: str
    code: tuple[str, ...] = ()

    def table(self, family: str) -> Mapping[str, Any] | None:
        """Return the recipe of a family whose file has none for this target (`layout`, `steps`,
        `capabilities`, …); None if it cannot be built.
        """
        return None

    def identity(self, devices: str = "") -> Identity:
        """Identify the toolchain on this machine, with the first GPU of `devices`.

        Raises:
            ToolchainError: it cannot be asked, or a package that shapes engines is not installed here.
        """
        toolchain = toolchains.find(self.name)
        found = toolchain.identity(devices)
        if missing := sorted({*toolchain.making} - {*found.versions}):
            raise ToolchainError(
                f"TARGET={self.name} cannot be built here: {', '.join(missing)} is not installed; build it "
                f"in the image of TARGET={self.name}, or with make engines TARGET={self.name}"
            )
        return found

    def tools(self) -> Mapping[str, str]:
        """Return the tools' paths by the names that steps use."""
        return {"python": sys.executable}

    def environment(self, devices: str) -> Mapping[str, str]:
        """Return variables for steps that run on `devices`."""
        return {}

    def gpus(self, count: int, environment: Mapping[str, str]) -> list[str]:
        """Return each instance's GPUs in the form of CUDA_VISIBLE_DEVICES; empty strings on a CPU."""
        return [""] * count

    def ranks(self, recipe: Recipe) -> int:
        """Return the number of GPUs that one instance needs; 1 where it needs none."""
        return 1

    def build_devices(self, models: Sequence[Model], environment: Mapping[str, str]) -> list[str]:
        """Return for each model the GPUs that its engine is built on.

        Raises:
            CatalogError: instances of one model have different GPUs, or some that are not there.
        """
        return [""] * len(models)

    def derived(self, parameters: Mapping[str, Any]) -> Mapping[str, Value]:
        """Return further names for steps, besides the parameters; a tuple stands for as many arguments."""
        return {}

    def check_possible(self, model: Model, recipe: Recipe, devices: str) -> None:
        """Refuse what no tool could build, before anything is downloaded.

        Raises:
            CatalogError: a combination of parameters and GPUs that cannot be.
        """

    def preflight(self, recipe: Recipe, work: BuildSteps, numbers: int = 0, devices: str = "") -> None:
        """Compare the steps with the installed tools before anything long runs. `numbers` is the count of
        weights.

        Raises:
            Unfit: they do not fit.
        """

    def render_engine(self, model: TritonModel, recipe: Recipe, folder: Path, engine: Path) -> None:
        """Write a Triton model that is the engine, or one of its graphs; by default as model_repos has it.
        `engine` is the later folder of its files.

        Raises:
            TemplateError: it lacks what a façade needs.
        """
        from ..repository import render_model

        render_model(model, recipe, folder)

    def narrow(self, repository: Path) -> None:
        """Remove from the other models what this target's engine model lacks."""

    def serving(self, recipe: Recipe, engine: Path) -> Serving:
        """Return what the guard needs to know of a finished engine folder.

        Raises:
            BuildError: it is not what the recipe asked for.
        """
        return Serving()


# What TARGET is where nothing names one: in containers, which are for GPUs first, and without Docker.
# compose.yaml and the Makefile say the same.
DEFAULT_IN_DOCKER, DEFAULT_WITHOUT_DOCKER = "torch", "openvino"
# Targets that build what another one does not, on the same machines, in images of their own, in the order in
# which they are asked: TensorRT-LLM's image has neither trtexec nor TensorRT's own backend. By name: the
# driver of Compose has none of their packages.
COMPANIONS: dict[str, tuple[str, ...]] = {"trtllm": ("tensorrt", "torch")}
_TARGETS: dict[str, Target | None] = {"torch": None, "trtllm": None, "tensorrt": None, "openvino": None}


def names() -> tuple[str, ...]:
    """Return all targets, the default first. Modules named in CONCH_TARGETS, separated by commas, may add
    more with `register`.
    """
    for module in filter(None, os.environ.get("CONCH_TARGETS", "").split(",")):
        import_module(module)
    return tuple(_TARGETS)


def find(name: str) -> Target:
    """Find a target by name.

    Raises:
        KeyError: there is no such target.
    """
    found = _TARGETS[name] or import_module(f"{__name__}.{name}.target").TARGET
    _TARGETS[name] = found
    return found


def register(target: Target) -> None:
    """Add a target."""
    _TARGETS[target.name] = target
