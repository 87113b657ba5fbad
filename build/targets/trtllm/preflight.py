"""Check NVIDIA's image before a build: what Conch is about to run against what the image has.

TensorRT-LLM's options differ from release to release. Before an engine is built, every step's options are
looked up in the tool's own --help, and the engine model's placeholders and tensors in the image's own
template.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from conch.driver import Needs
from conch.gpus import Gpu, gpus
from conch.nvidia_images import RELEASES, Release, help_of, needs_of

from ...commands import FOLDERS, BuildSteps, Command
from ...recipes import Recipe
from ...tensors import misfits as tensor_misfits
from .. import TemplateError
from ..nvidia.options import REMEDY, gpu_findings, misfits, require
from .engine_config import fill, missing_placeholders, unknown_placeholders
from .image import SCRIPTS, TrtLlmBuilderImage
from .limits import world_size

WIDTH = {"int8": 1.0, "int4": 0.5}  # bytes for a number, where it is not the precision's


def check(
    recipe: Recipe, work: BuildSteps, image: TrtLlmBuilderImage, numbers: int = 0, devices: str = ""
) -> None:
    """Compare before anything long runs. `numbers` is the count of weights; `devices` lists the GPUs to build
    on, empty for all.

    Raises:
        Unfit: at least one finding.
    """
    require(recipe.family, findings(recipe, work, image, numbers, devices))


def findings(
    recipe: Recipe, work: BuildSteps, image: TrtLlmBuilderImage, numbers: int = 0, devices: str = ""
) -> list[str]:
    """Return everything that does not fit."""
    version = image.versions().get("tensorrt_llm", "missing")
    release = RELEASES.get(version)
    return [
        *_release(version, release, recipe.family),
        *_tools(work.all(), image),
        *_template(image.template, recipe),
        *_machine(recipe, gpus(devices), numbers, release.needs if release else needs_of("")),
    ]


def _release(version: str, release: Release | None, family: str) -> Iterator[str]:
    if not release:
        known = " and ".join(RELEASES)
        yield f"tensorrt_llm is {version}, Conch is written for {known}; {REMEDY}"
    elif reason := release.unfit.get(family):
        yield f"tensorrt_llm is {version}: {reason}; {REMEDY}"


def _tools(commands: Sequence[Command], image: TrtLlmBuilderImage) -> Iterator[str]:
    names = {**image.tools(), **{folder: f"/{folder}" for folder in FOLDERS}}
    helps: dict[tuple[str, ...], str | None] = {}
    for argv in (command.filled(names) for command in commands):
        tool = tuple(argv[: next((i for i, part in enumerate(argv) if part.startswith("--")), len(argv))])
        if tool[:2] == (names["python"], "-m"):
            continue  # Conch's own
        if tool not in helps:
            helps[tool] = help_of(tool, image.search_path)
        text = helps[tool]
        if text is None:
            yield f"{tool[-1]} does not run; it was looked for in: {', '.join(_places(tool[-1], image))}"
        else:
            yield from (f"{tool[-1]}: {wrong}; {REMEDY}" for wrong in misfits(argv[len(tool) :], text))


def _places(tool: str, image: TrtLlmBuilderImage) -> list[str]:
    known = next((paths for paths in SCRIPTS.values() if tool.endswith(paths[0])), None)
    return (
        [str(image.root / "app/examples" / path) for path in known] if known else image.search_path.split(":")
    )


def _template(path: Path, recipe: Recipe) -> Iterator[str]:
    if not path.is_file():
        yield f"the engine model's template is not at {path}; {REMEDY}"
        return
    text = path.read_text("utf-8")
    unknown, missing = unknown_placeholders(text), missing_placeholders(text)
    for name in unknown:
        yield f"{path} has a placeholder {name} that Conch does not know; {REMEDY}"
    for name in missing:
        yield f"{path} lacks the placeholder {name}; {REMEDY}"
    if not (unknown or missing):
        try:
            yield from tensor_misfits(fill(text, recipe, Path("/engine")), recipe)
        except TemplateError as error:
            yield str(error)


def _machine(recipe: Recipe, found: Sequence[Gpu], numbers: int, needs: Needs) -> Iterator[str]:
    """Check GPU memory: one GPU builds every rank in turn and holds that rank's weights, as plan, with room
    to try kernels. Unknown memory is ignored.
    """
    yield from gpu_findings(found, needs)
    width = WIDTH.get(
        str(recipe.parameters.get("weight_only")), 4 if recipe.parameters.get("precision") == "float32" else 2
    )
    need = 1.2 * width * numbers / world_size(recipe.parameters) / (1 << 20) + 1024
    if found and found[0].memory is not None and found[0].memory < need:
        yield (
            f"{found[0].name} has {found[0].memory} MiB, building needs about {need:.0f}; use a larger GPU, "
            "WEIGHT_ONLY=int8, or TP_SIZE=2"
        )
