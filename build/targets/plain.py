"""What targets have in common that need neither GPUs nor tools of somebody else's image."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from conch.bundle import Serving

from ..catalog import Model, Recipe, TritonModel, Value
from ..commands import BuildSteps
from ..repository import render_model
from ..toolchain import Identity, installed


class Plain:
    """A Target of Python packages on the machine's own processors; see Target for what each method means.

    `code`: see Target. `deciding`: packages that must be the same where an engine is made and where it is
    served; `making`: further ones that shape it. Those that are not installed here are left out.
    """

    name: str
    code: tuple[str, ...] = ()
    deciding: tuple[str, ...] = ()
    making: tuple[str, ...] = ()

    def table(self, family: str) -> Mapping[str, Any] | None:
        """Recipes stand in the families' files."""
        return None

    def identity(self, devices: str = "") -> Identity:
        """Versions of its packages."""
        return Identity(self.name, installed((*self.deciding, *self.making)), {}, {})

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

    def remedy(self, model_id: str) -> str:
        """The builder's own command."""
        return f"make engines MODEL_ID={model_id} TARGET={self.name} (in Docker: docker compose up -d)"
