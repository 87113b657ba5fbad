"""What targets have in common that need neither GPUs nor tools of somebody else's image."""

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
    """A Target of Python packages on the machine's own processors; see Target for what each method means.

    `code`: see Target. Its toolchain is the one that `conch.toolchains` has by its name.
    """

    name: str
    code: tuple[str, ...] = ()

    def table(self, family: str) -> Mapping[str, Any] | None:
        """Recipes stand in the families' files."""
        return None

    def identity(self, devices: str = "") -> Identity:
        """Its toolchain's.

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
        """The Python that runs."""
        return {"python": sys.executable}

    def environment(self, devices: str) -> Mapping[str, str]:
        """Nothing besides."""
        return {}

    def gpus(self, count: int, environment: Mapping[str, str]) -> list[str]:
        """None."""
        return [""] * count

    def ranks(self, recipe: Recipe) -> int:
        """One process."""
        return 1

    def build_devices(self, models: Sequence[Model], environment: Mapping[str, str]) -> list[str]:
        """None."""
        return [""] * len(models)

    def derived(self, parameters: Mapping[str, Any]) -> Mapping[str, Value]:
        """The steps' options are the parameters themselves."""
        return {}

    def check_possible(self, model: Model, recipe: Recipe, devices: str) -> None:
        """The families' `supports` say it all."""

    def preflight(self, recipe: Recipe, work: BuildSteps, numbers: int = 0, devices: str = "") -> None:
        """The steps are Conch's own."""

    def render_engine(self, model: TritonModel, recipe: Recipe, folder: Path, engine: Path) -> None:
        """A model of model_repos like the others."""
        render_model(model, recipe, folder)

    def narrow(self, repository: Path) -> None:
        """The engine model takes all tensors."""

    def serving(self, recipe: Recipe, bundle: Path, home: Path) -> Serving:
        """One process without MPI."""
        return Serving()
