"""Render a bundle's Triton repository: folders of model_repos/models with the few fields that depend on the
bundle.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from google.protobuf import text_format

from conch.names import ENGINE, SPEECH

from . import targets
from .catalog import ROOT
from .recipes import Recipe, TritonModel
from .tensors import MODELS, parse_config

CODE = ("conch", "serving")  # the Python code of the repository's models
IGNORED = shutil.ignore_patterns("__pycache__")


def render(recipe: Recipe, bundle: Path, home: Path | None = None) -> None:
    """Write repository/, its Python code and parameters.json for a bundle whose engine/ is complete. `home`
    is its later folder, if it will be moved.

    Raises:
        TemplateError: the target's engine model is of another release, or lacks a tensor that a façade needs.
    """
    target = targets.find(recipe.target)
    for room in CODE:
        shutil.copytree(ROOT / room, bundle / room, ignore=IGNORED)
    for model in recipe.models:
        folder = bundle / "repository" / model.name
        if model.name == ENGINE or model.graph:
            target.render_engine(model, recipe, folder, (home or bundle) / "engine")
        else:
            render_model(model, recipe, folder)
    target.narrow(bundle / "repository")
    (bundle / "parameters.json").write_text(json.dumps(dict(recipe.parameters), indent=2) + "\n", "utf-8")


def render_model(model: TritonModel, recipe: Recipe, folder: Path) -> None:
    """Copy a model of model_repos under its name in the bundle."""
    shutil.copytree(MODELS / model.folder, folder, ignore=IGNORED)
    config = parse_config(folder / "config.pbtxt")
    config.name = model.name
    config.max_batch_size = int(recipe.parameters["max_batch_size"])
    config.model_transaction_policy.decoupled = model.decoupled
    if model.name == SPEECH and (count := int(recipe.parameters.get("facade_instances", 0))):
        config.instance_group[0].count = count  # else the guard sets it
    (folder / "config.pbtxt").write_text(text_format.MessageToString(config), "utf-8")
