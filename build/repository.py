"""Rendering a bundle's Triton repository: folders copied, configurations changed as typed protobuf, never by string."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

from .catalog import ROOT, Recipe, TritonModel

MODELS = ROOT / "model_repos" / "models"
IGNORED = shutil.ignore_patterns("__pycache__")


def parse_config(path: Path) -> model_config_pb2.ModelConfig:
    """A config.pbtxt as protobuf; a misspelt field is an error."""
    return text_format.Parse(path.read_text("utf-8"), model_config_pb2.ModelConfig())


def render(recipe: Recipe, bundle: Path) -> None:
    """Write repository/, serving/ and parameters.json of a bundle whose engine/ is complete."""
    shutil.copytree(ROOT / "serving", bundle / "serving", ignore=IGNORED)
    for model in recipe.models:
        _render_model(model, recipe, bundle / "repository" / model.name)
    (bundle / "parameters.json").write_text(json.dumps(dict(recipe.parameters), indent=2) + "\n", "utf-8")


def _render_model(model: TritonModel, recipe: Recipe, folder: Path) -> None:
    shutil.copytree(MODELS / model.folder, folder, ignore=IGNORED)
    config = parse_config(folder / "config.pbtxt")
    config.name = model.name
    config.max_batch_size = int(recipe.parameters["max_batch_size"])
    config.model_transaction_policy.decoupled = model.decoupled
    (folder / "config.pbtxt").write_text(text_format.MessageToString(config), "utf-8")
