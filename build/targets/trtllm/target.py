"""TensorRT-LLM in NVIDIA's pinned image."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from google.protobuf import text_format

from conch.bundle import Serving
from conch.gpus import gpus
from conch.names import ENGINE

from ...catalog import Model
from ...commands import BuildSteps
from ...plan import BuildError
from ...recipes import Recipe, TritonModel, Value
from ...tensors import misfits, narrow, parse_config
from .. import TemplateError
from ..nvidia.target import InImage
from .engine_config import fill
from .engine_rules import cuda_pool_bytes, findings
from .image import TrtLlmBuilderImage
from .limits import check_possible, derived, world_size
from .preflight import check


class TensorRtLlm(InImage):
    """A target whose facts all follow from the image that this process runs in."""

    name, image = "trtllm", TrtLlmBuilderImage
    code = ()  # engines are made by the image's own tools

    def tools(self) -> Mapping[str, str]:
        return self.image.from_environment().tools()

    def ranks(self, recipe: Recipe) -> int:
        return world_size(recipe.parameters)

    def derived(self, parameters: Mapping[str, Any]) -> Mapping[str, Value]:
        return derived(parameters)

    def check_possible(self, model: Model, recipe: Recipe, devices: str) -> None:
        check_possible(model, recipe, gpus(devices))

    def preflight(self, recipe: Recipe, work: BuildSteps, numbers: int = 0, devices: str = "") -> None:
        check(recipe, work, self.image.from_environment(), numbers, devices)

    def render_engine(self, model: TritonModel, recipe: Recipe, folder: Path, engine: Path) -> None:
        """See Target: config.pbtxt out of the image's template. The model has no file of its own; Triton
        wants its version folder all the same.
        """
        (folder / "1").mkdir(parents=True)
        (folder / "1" / ".keep").touch()
        config = fill(self.image.from_environment().template.read_text("utf-8"), recipe, engine)
        if wrong := misfits(config, recipe):
            raise TemplateError("; ".join(wrong))
        (folder / "config.pbtxt").write_text(text_format.MessageToString(config), "utf-8")

    def narrow(self, repository: Path) -> None:
        narrow(repository, parse_config(repository / ENGINE / "config.pbtxt"))

    def serving(self, recipe: Recipe, engine: Path) -> Serving:
        if wrong := [*findings(recipe, engine)]:
            raise BuildError("; ".join(wrong))
        return Serving(self.ranks(recipe), cuda_pool_bytes(recipe, engine), mpi=True)


TARGET = TensorRtLlm()
