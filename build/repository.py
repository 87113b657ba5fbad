"""A bundle's Triton repository: folders of model_repos/models with the few fields that a bundle decides."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from google.protobuf import text_format

from .catalog import ROOT, Recipe, TritonModel
from .targets.trtllm.engine_config import NAME as ENGINE_MODEL
from .targets.trtllm.engine_config import TemplateError, fill
from .tensors import MODELS, misfits, narrow, parse_config
from .toolchain import Image

IGNORED = shutil.ignore_patterns("__pycache__")


def render(recipe: Recipe, bundle: Path, home: Path | None = None) -> None:
    """Write repository/, serving/ and parameters.json of a bundle whose engine/ is complete. `home`: where it
    will lie, if not here.

    Raises:
        TemplateError: the image's template is of another release, or its engine model lacks a tensor that a
        façade needs.
    """
    shutil.copytree(ROOT / "serving", bundle / "serving", ignore=IGNORED)
    for model in recipe.models:
        folder = bundle / "repository" / model.name
        if recipe.target == "trtllm" and model.name == ENGINE_MODEL:
            _render_engine(recipe, folder, (home or bundle) / "engine")
        else:
            _render_model(model, recipe, folder)
    if recipe.target == "trtllm":
        narrow(bundle / "repository", parse_config(bundle / "repository" / ENGINE_MODEL / "config.pbtxt"))
    (bundle / "parameters.json").write_text(json.dumps(dict(recipe.parameters), indent=2) + "\n", "utf-8")


def _render_model(model: TritonModel, recipe: Recipe, folder: Path) -> None:
    shutil.copytree(MODELS / model.folder, folder, ignore=IGNORED)
    config = parse_config(folder / "config.pbtxt")
    config.name = model.name
    config.max_batch_size = int(recipe.parameters["max_batch_size"])
    config.model_transaction_policy.decoupled = model.decoupled
    (folder / "config.pbtxt").write_text(text_format.MessageToString(config), "utf-8")


def _render_engine(recipe: Recipe, folder: Path, engine: Path) -> None:
    """A model without a file of its own: Triton wants its version folder all the same."""
    (folder / "1").mkdir(parents=True)
    (folder / "1" / ".keep").touch()
    config = fill(Image.from_environment().template.read_text("utf-8"), recipe, engine)
    if wrong := misfits(config, recipe):
        raise TemplateError("; ".join(wrong))
    (folder / "config.pbtxt").write_text(text_format.MessageToString(config), "utf-8")
