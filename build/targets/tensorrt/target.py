"""TensorRT plans of encoders in NVIDIA's plain image of Triton."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from conch.gpus import gpus
from conch.nvidia_images import TensorRtImage, needs_of

from ...commands import BuildSteps
from ...recipes import Recipe, TritonModel
from .. import EXPORTERS
from ..nvidia.options import REMEDY, gpu_findings, misfits, require
from ..nvidia.target import InImage
from .models import configured, write
from .plans import Plan, Plans, PlanTensor, command

MAJOR = 10  # TensorRT's interfaces that this was written for; image 25.07-py3 has 10.11


class TensorRt(InImage):
    """Exports with torch and onnx, compiles with the image's trtexec; Triton runs the plans itself."""

    name, image = "tensorrt", TensorRtImage
    code = ("build/targets/tensorrt", *EXPORTERS, "serving/vision")

    def tools(self) -> Mapping[str, str]:
        """See Target: the running Python, whose environment has torch and onnx, and trtexec."""
        return {**super().tools(), "trtexec": str(self.image.from_environment().trtexec)}

    def preflight(self, recipe: Recipe, work: BuildSteps, numbers: int = 0, devices: str = "") -> None:
        found = _findings(TensorRtImage.from_environment(), str(recipe.parameters["precision"]), devices)
        require(recipe.family, [*_calibration(recipe.parameters), *found])

    def render_engine(self, model: TritonModel, recipe: Recipe, folder: Path, engine: Path) -> None:
        """See Target: an encoder's tensors as model_repos has them, and its plan."""
        made = folder.parents[1] / "engine"
        plan = next(plan for plan in Plans.load(made).plans if plan.name == model.graph)
        config = configured(model, plan, int(recipe.parameters["max_batch_size"]))
        write(config, made / plan.file, folder)


def _calibration(parameters: Mapping[str, Any]) -> Iterator[str]:
    folder = Path(str(parameters.get("calibration")))
    if parameters.get("compress") == "int8" and not folder.is_dir():
        yield (
            f"compress=int8 measures ranges on pictures, and calibration={folder} is not a folder; name one "
            "with pictures like those that will be sent"
        )


def _findings(image: TensorRtImage, precision: str, devices: str) -> Iterator[str]:
    """Return what of the image or the machine does not fit."""
    text = image.help()
    if text is None:
        yield f"{image.trtexec} does not run; {REMEDY}"
    else:
        version = image.versions()["tensorrt"]
        if int(version.partition(".")[0]) != MAJOR:
            yield f"{image.trtexec} is of TensorRT {version}, Conch is written for {MAJOR}; {REMEDY}"
        asked = Plan(
            "encoder", (PlanTensor("input_ids", "TYPE_INT32", (1, 1), (1, 1), (1, 1)),), "embedding", 1
        )
        argv = command(str(image.trtexec), Path("a.onnx"), asked, Path("a.plan"), Path("a.cache"), precision)
        yield from (f"{image.trtexec}: {wrong}; {REMEDY}" for wrong in misfits(argv[1:], text))
    yield from gpu_findings(gpus(devices), needs_of(os.environ.get("CONCH_BASE_IMAGE", "")))


TARGET = TensorRt()
