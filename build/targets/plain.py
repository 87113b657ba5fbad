"""What targets share that need neither GPUs nor another vendor's image."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from conch import toolchains
from conch.bundle import Serving
from conch.toolchain import Identity, ToolchainError

from ..catalog import Model
from ..commands import BuildSteps
from ..recipes import Recipe, TritonModel, Value
from ..repository import render_model


class Plain:
    """A Target made of Python packages that needs no GPU; see Target for what each method means.

    `code`: see Target. Its toolchain is the one of the same name in `conch.toolchains`.
    """

    name: str
    code: tuple[str, ...] = ()

    def table(self, family: str) -> Mapping[str, Any] | None:
        """Return None, since recipes are in the families' files."""
        return None

    def identity(self, devices: str = "") -> Identity:
        """Return its toolchain's identity.

        Raises:
            ToolchainError: a package that shapes its engines is not installed here.
        """
        toolchain = toolchains.find(self.name)
        found = toolchain.identity(devices)
        if missing := sorted({*getattr(toolchain, "making", ())} - {*found.versions}):
            raise ToolchainError(
                f"TARGET={self.name} cannot be built here: {', '.join(missing)} is not installed; build it "
                f"in the image of TARGET={self.name}, or with make engines TARGET={self.name}"
            )
        return found

    def tools(self) -> Mapping[str, str]:
        """Return the Python that runs."""
        return {"python": sys.executable}

    def environment(self, devices: str) -> Mapping[str, str]:
        """Return no variables."""
        return {}

    def gpus(self, count: int, environment: Mapping[str, str]) -> list[str]:
        """Return no GPUs."""
        return [""] * count

    def ranks(self, recipe: Recipe) -> int:
        """Return 1."""
        return 1

    def build_devices(self, models: Sequence[Model], environment: Mapping[str, str]) -> list[str]:
        """Return no GPUs."""
        return [""] * len(models)

    def derived(self, parameters: Mapping[str, Any]) -> Mapping[str, Value]:
        """Return no names: the steps' options are the parameters themselves."""
        return {}

    def check_possible(self, model: Model, recipe: Recipe, devices: str) -> None:
        """Refuse nothing: the families' `supports` has all conditions."""

    def preflight(self, recipe: Recipe, work: BuildSteps, numbers: int = 0, devices: str = "") -> None:
        """Check nothing: the steps are Conch's own."""

    def render_engine(self, model: TritonModel, recipe: Recipe, folder: Path, engine: Path) -> None:
        """Copy the engine model from model_repos, like the others."""
        render_model(model, recipe, folder)

    def narrow(self, repository: Path) -> None:
        """Change nothing: the engine model takes all tensors."""

    def serving(self, recipe: Recipe, bundle: Path, home: Path) -> Serving:
        """Return one process without MPI."""
        return Serving()
