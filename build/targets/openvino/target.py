"""OpenVINO on an x86-64 CPU."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from conch.bundle import Serving

from ...catalog import Model, Recipe, TritonModel, Value
from ...repository import render_model
from ...steps import BuildSteps
from ...toolchain import Identity, installed


class OpenVino:
    """Exports and serves with Python packages; no GPUs."""

    name = "openvino"
    code = ("targets/openvino", "assets")
    deciding = ("openvino",)

    def table(self, family: str) -> None:
        """See Target: recipes stand in the families' files."""

    def identity(self, devices: str = "") -> Identity:
        """See Target; packages that are not installed here are left out."""
        return Identity(self.name, installed(("openvino", "torch", "transformers", "tokenizers")), {}, {})

    def tools(self) -> Mapping[str, str]:
        """See Target."""
        return {"python": sys.executable}

    def environment(self, devices: str) -> Mapping[str, str]:
        """See Target."""
        return {}

    def gpus(self, count: int, environment: Mapping[str, str]) -> list[str]:
        """See Target."""
        return [""] * count

    def ranks(self, recipe: Recipe) -> int:
        """See Target."""
        return 1

    def build_devices(self, models: Sequence[Model], environment: Mapping[str, str]) -> list[str]:
        """See Target."""
        return [""] * len(models)

    def derived(self, parameters: Mapping[str, Any]) -> Mapping[str, Value]:
        """See Target: the steps' options are the parameters themselves."""
        return {}

    def check_possible(self, model: Model, recipe: Recipe, devices: str) -> None:
        """See Target: the families' `supports` say it all."""

    def preflight(self, recipe: Recipe, work: BuildSteps, numbers: int = 0, devices: str = "") -> None:
        """See Target: the steps are Conch's own."""

    def render_engine(self, model: TritonModel, recipe: Recipe, folder: Path, engine: Path) -> None:
        """See Target: a model of model_repos like the others."""
        render_model(model, recipe, folder)

    def narrow(self, repository: Path) -> None:
        """See Target: the engine model takes all tensors."""

    def serving(self, recipe: Recipe, bundle: Path, home: Path) -> Serving:
        """See Target."""
        return Serving()

    def remedy(self, model_id: str) -> str:
        """See Target."""
        return f"make engines MODEL_ID={model_id} TARGET={self.name} (in Docker: docker compose up -d)"


TARGET = OpenVino()
