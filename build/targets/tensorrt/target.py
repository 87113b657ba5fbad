"""TensorRT plans of encoders in NVIDIA's plain image of Triton."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from conch.bundle import Serving
from conch.gpus import assigned, gpus

from ...catalog import Model, Recipe, TritonModel
from ...jobs import BuildError
from ...steps import BuildSteps
from ...tensors import parse_config
from ...toolchain import Identity, Unfit
from ..nvidia import environment, misfits
from ..plain import Plain
from ..trtllm.driver import driver, driver_findings
from ..trtllm.gpus import devices_of
from .image import MAJOR, Image
from .plans import Plan, Plans, Tensor, command
from .rules import configured, findings, write

REMEDY = "use the image of docker/server.Dockerfile"


class TensorRt(Plain):
    """Exports with torch and onnx, compiles with the image's trtexec; Triton runs the plans itself."""

    name = "tensorrt"
    code = ("build/targets/tensorrt", "build/checkpoints", "build/pictures", "serving/architectures")
    deciding = ("tensorrt",)

    def identity(self, devices: str = "") -> Identity:
        """See Target."""
        return Image.from_environment().identity(devices)

    def tools(self) -> Mapping[str, str]:
        """See Target."""
        return Image.from_environment().tools()

    def environment(self, devices: str) -> Mapping[str, str]:
        """See Target."""
        return environment(Image.from_environment().root, devices)

    def gpus(self, count: int, environment: Mapping[str, str]) -> list[str]:
        """See Target."""
        return assigned(count, environment)

    def build_devices(self, models: Sequence[Model], environment: Mapping[str, str]) -> list[str]:
        """See Target."""
        return devices_of(models, environment)

    def preflight(self, recipe: Recipe, work: BuildSteps, numbers: int = 0, devices: str = "") -> None:
        """See Target."""
        found = list(_findings(Image.from_environment(), str(recipe.parameters["precision"]), devices))
        if found:
            listed = "\n".join(f"  - {finding}" for finding in found)
            raise Unfit(f"this image cannot build family {recipe.family}:\n{listed}")

    def render_engine(self, model: TritonModel, recipe: Recipe, folder: Path, engine: Path) -> None:
        """See Target: an encoder's tensors as model_repos has them, and its plan."""
        made = folder.parents[1] / "engine"
        plan = _plans(made)[model.graph]
        config = configured(model, plan, int(recipe.parameters["max_batch_size"]))
        write(config, made / plan.file, folder)

    def serving(self, recipe: Recipe, bundle: Path, home: Path) -> Serving:
        """See Target."""
        plans, wrong = _plans(bundle / "engine"), list[str]()
        for model in (model for model in recipe.models if model.graph):
            folder = bundle / "repository" / model.name
            wrong += findings(parse_config(folder / "config.pbtxt"), plans[model.graph], folder / "1")
        if wrong:
            raise BuildError("; ".join(wrong))
        return Serving()

    def remedy(self, model_id: str) -> str:
        """See Target: plans come from Compose's builders, whose images hold the tools."""
        return "docker compose up -d (its builders remake what does not fit)"


def _plans(engine: Path) -> dict[str, Plan]:
    return {plan.name: plan for plan in Plans.load(engine).plans}


def _findings(image: Image, precision: str, devices: str) -> Iterator[str]:
    """What of the image or the machine does not fit."""
    text = image.help()
    if text is None:
        yield f"{image.trtexec} does not run; {REMEDY}"
    else:
        version = image.versions()["tensorrt"]
        if int(version.partition(".")[0]) != MAJOR:
            yield f"{image.trtexec} is of TensorRT {version}, Conch is written for {MAJOR}; {REMEDY}"
        asked = Plan("encoder", (Tensor("input_ids", "TYPE_INT32", (1, 1), (1, 1), (1, 1)),), "embedding", 1)
        argv = command(str(image.trtexec), Path("a.onnx"), asked, Path("a.plan"), Path("a.cache"), precision)
        yield from (f"{image.trtexec}: {wrong}; {REMEDY}" for wrong in misfits(argv[1:], text))
    found = gpus(devices)
    if not found:
        yield (
            "nvidia-smi shows no GPU; start the container with GPUs (docs/docker.md), or use TARGET=openvino"
        )
    yield from driver_findings(driver(), [gpu.name for gpu in found])


TARGET = TensorRt()
